"""Which bytes a download is: one artifact, or an archive of several that is put together on the way out."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from app.artifacts.tar_stream import Member, VirtualTar
from app.downloads import Content, Download, OpenRange
from app.jobs.checkpoints import require_checkpoint
from app.jobs.service import require_job
from core.db import progress
from core.db.models import Artifact, Job
from core.db.session import Sessions
from core.errors import NotFound, NotReady
from core.ids import JobId, TenantId
from core.status import JobStatus
from core.storage.store import ObjectStore

ADAPTER = "adapter/"
"""Artifacts under this name are the adapter's; in archives it is the folder's name."""
RESULTS = "results.json"
TAR = "application/x-tar"

_LOADED = (".safetensors", ".json", ".jinja", ".txt", ".model", ".md")
"""What loads an adapter or a model. Optimizer and random states (pickles) stay with the checkpoint."""
_TRAINER_ONLY = frozenset({"trainer_state.json", "MANIFEST.json"})


class ArtifactNotFound(NotFound):
    code = "artifact_not_found"
    default_fix = "GET .../artifacts lists what the job has made so far."


def artifacts(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> list[Artifact]:
    with sessions() as session:
        require_job(session, tenant_id, job_id)
        return list(progress.artifacts(session, job_id))


def artifact(sessions: Sessions, tenant_id: TenantId, job_id: JobId, name: str) -> Download:
    """Raises `NotReady` for what every job makes in the end, `ArtifactNotFound` for other names."""
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        found = progress.artifact(session, job_id, name)
    if found is not None:
        filename = f"{job_id}-{PurePosixPath(name).name}"
        return Download(found.key, filename, found.size_bytes, found.sha256, found.content_type)
    if job.status is not JobStatus.SUCCEEDED and (name == RESULTS or name.startswith(ADAPTER)):
        raise _not_ready(job, f"{name[:200]!r}")
    raise ArtifactNotFound(f"The job has no artifact {name[:200]!r}.", param="name")


def adapter(sessions: Sessions, store: ObjectStore, tenant_id: TenantId, job_id: JobId) -> Content:
    """The adapter's folder as one archive. Its results are written last: with them, the adapter is whole."""
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        rows = [row for row in progress.artifacts(session, job_id) if row.name.startswith(ADAPTER)]
        is_whole = progress.artifact(session, job_id, RESULTS) is not None
    if not rows or not is_whole:
        raise _not_ready(job, "the adapter")
    members = (Member(row.name, row.size_bytes, row.sha256, _opener(store, row.key)) for row in rows)
    return _archive(f"{job_id}-adapter.tar", members)


def checkpoint_adapter(
    sessions: Sessions, store: ObjectStore, tenant_id: TenantId, job_id: JobId, step: int
) -> Content:
    """The adapter as it was at a durable step."""
    with sessions() as session:
        require_job(session, tenant_id, job_id)
        checkpoint = require_checkpoint(session, job_id, step)
    members = (
        Member(
            f"{ADAPTER}{file['name']}",
            file["size_bytes"],
            file["sha256"],
            _opener(store, checkpoint.prefix + file["name"]),
        )
        for file in checkpoint.files
        if _is_loaded(file["name"])
    )
    return _archive(f"{job_id}-step-{step}-adapter.tar", members)


def _is_loaded(name: str) -> bool:
    return name.endswith(_LOADED) and name not in _TRAINER_ONLY


def _archive(filename: str, members: Iterable[Member]) -> Content:
    archive = VirtualTar(list(members))
    return Content(filename, archive.size_bytes, archive.sha256, TAR, archive.read)


def _opener(store: ObjectStore, key: str) -> OpenRange:
    return lambda start, end: store.open(key, start=start, end=end)


def _not_ready(job: Job, what: str) -> NotReady:
    message = f"The job is {job.status}: {what} does not exist."
    if job.status.is_terminal:
        fix = "A job makes it only when it succeeds; its checkpoints may be of use: GET .../checkpoints."
    else:
        fix = "Wait until the job's status is `succeeded`."
    return NotReady(message, fix=fix)
