"""Where objects live in the store. Keys are data: nothing else builds them."""

from core.ids import FileId, JobId


def data_file(file_id: FileId) -> str:
    return f"files/{file_id}"


def job(job_id: JobId) -> str:
    """Prefix of everything a job has made."""
    return f"jobs/{job_id}/"


def checkpoint(job_id: JobId, step: int, attempt: int) -> str:
    """Prefix of one checkpoint. The attempt is in it: a zombie's upload cannot touch another attempt's."""
    return f"jobs/{job_id}/checkpoints/{step:08d}-a{attempt:04d}/"


def manifest(prefix: str) -> str:
    """Written last of a checkpoint's objects: names, sizes and digests of the others."""
    return f"{prefix}MANIFEST.json"


def artifact(job_id: JobId, attempt: int, name: str) -> str:
    return f"jobs/{job_id}/artifacts/a{attempt:04d}/{name}"
