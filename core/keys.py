"""Where objects live in the store. Keys are data: nothing else builds them, nothing else takes them apart."""

import re
from dataclasses import dataclass

from core.ids import FileId, JobId

JOBS = "jobs/"
DATA_FILES = "files/"
PROBES = "probes/"
"""What self-tests write, and delete again unless they die."""

_DATA_FILE = re.compile(r"files/([^/]+)")
_CHECKPOINT = re.compile(r"jobs/([^/]+)/checkpoints/([0-9]+)-a([0-9]+)/.+")
_ARTIFACT = re.compile(r"jobs/([^/]+)/artifacts/a([0-9]+)/.+")
_EXPORT = re.compile(r"jobs/([^/]+)/exports/([a-z]+)/a([0-9]+)-([0-9a-f]{16})/file")


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The prefix of one checkpoint, taken apart."""

    job_id: JobId
    step: int
    attempt: int

    @property
    def prefix(self) -> str:
        return checkpoint(self.job_id, self.step, self.attempt)


@dataclass(frozen=True, slots=True)
class ArtifactsPlace:
    """The prefix of the artifacts of one attempt, taken apart."""

    job_id: JobId
    attempt: int

    @property
    def prefix(self) -> str:
        return artifacts(self.job_id, self.attempt)


@dataclass(frozen=True, slots=True)
class ExportPlace:
    """The prefix of one version of a file that an exporter has made, taken apart."""

    job_id: JobId
    target: str
    attempt: int
    """Of the export."""
    version: str

    @property
    def prefix(self) -> str:
        return f"jobs/{self.job_id}/exports/{self.target}/a{self.attempt:04d}-{self.version}/"

    @property
    def key(self) -> str:
        return f"{self.prefix}file"


Place = CheckpointPlace | ArtifactsPlace | ExportPlace


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


def artifacts(job_id: JobId, attempt: int) -> str:
    """Prefix of what one attempt has published."""
    return f"jobs/{job_id}/artifacts/a{attempt:04d}/"


def artifact(job_id: JobId, attempt: int, name: str) -> str:
    return f"{artifacts(job_id, attempt)}{name}"


def export(job_id: JobId, target: str, attempt: int, sha256: str) -> str:
    """One version of the file that an exporter has made for downloads."""
    return ExportPlace(job_id, target, attempt, sha256[:16]).key


def probe(nonce: str) -> str:
    return f"{PROBES}{nonce}"


def data_file_of(key: str) -> FileId | None:
    """Whose bytes the object is; None for a key that `data_file` does not make."""
    match = _DATA_FILE.fullmatch(key)
    return None if match is None else FileId(match[1])


def place_of(key: str) -> Place | None:
    """Where in a job's prefix the object lies; None for a key that nothing here makes for a job."""
    place: Place
    if match := _CHECKPOINT.fullmatch(key):
        place = CheckpointPlace(JobId(match[1]), int(match[2]), int(match[3]))
    elif match := _ARTIFACT.fullmatch(key):
        place = ArtifactsPlace(JobId(match[1]), int(match[2]))
    elif match := _EXPORT.fullmatch(key):
        place = ExportPlace(JobId(match[1]), match[2], int(match[3]), match[4])
    else:
        return None
    return place if key.startswith(place.prefix) else None
