"""Data sets: checked row by row, stored, then recorded. The object comes first, so that a row never lies."""

from collections.abc import Sequence
from mimetypes import guess_type

import structlog
from fastapi.responses import JSONResponse

from app.auth import Caller
from app.downloads import Download
from app.files.schemas import FileObject, FilePurpose
from app.idempotency import Idempotency
from app.paging import Page
from app.uploads import Upload
from core import keys
from core.db import files, jobs
from core.db.models import File
from core.db.session import Sessions
from core.errors import FileInUse, InvalidFile, InvalidRequest, NotFound, Problem, RequestInFlight
from core.ids import FileId, new_file_id
from core.rows import FileFormat, FileReport, detect_format, inspect_file
from core.storage.store import OCTETS, ObjectStore, StoreError

CONTENT_TYPES = {
    FileFormat.JSONL: "application/jsonl",
    FileFormat.CSV: "text/csv; charset=utf-8",
    FileFormat.PARQUET: "application/vnd.apache.parquet",
}
FORM_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
"""What OpenAI's clients may send beside the file."""
_HEAD_BYTES = 4096

log = structlog.get_logger()


class DataFileNotFound(NotFound):
    code = "file_not_found"
    default_fix = "Check the id; GET /v1/files lists your files."


def create(sessions: Sessions, store: ObjectStore, caller: Caller, once: Idempotency, upload: Upload) -> JSONResponse:
    once = once.about(upload.identity)
    if (earlier := once.earlier_answer(sessions)) is not None:
        return earlier
    _check_form(upload)
    file = _checked(upload, caller)
    store.put_file(file.key, upload.path, sha256=file.sha256, content_type=_content_type(file))
    return _record(sessions, store, once, file)


def page(
    sessions: Sessions, caller: Caller, page: Page, purpose: FilePurpose | None, *, oldest_first: bool
) -> Sequence[File]:
    after = FileId(page.after) if page.after else None
    with sessions() as session:
        return files.page(
            session, caller.tenant_id, after=after, limit=page.fetch, purpose=purpose, oldest_first=oldest_first
        )


def get(sessions: Sessions, caller: Caller, file_id: FileId) -> File:
    with sessions() as session:
        return _found(files.get_owned(session, caller.tenant_id, file_id))


def content(sessions: Sessions, caller: Caller, file_id: FileId) -> Download:
    file = get(sessions, caller, file_id)
    return Download(file.key, file.filename, file.size_bytes, file.sha256, _content_type(file))


def delete(sessions: Sessions, store: ObjectStore, caller: Caller, file_id: FileId) -> None:
    """Hide the row, then drop the object, unless it is a job's own artifact."""
    with sessions.begin() as session:
        file = _found(files.get_owned_to_delete(session, caller.tenant_id, file_id))
        if jobs.any_active_using(session, file.id):
            fix = "Cancel the job, or delete the file once the job is finished."
            raise FileInUse("A job that is not finished needs this file.", param="file_id", fix=fix)
        files.delete(session, file.id)
    if file.job_id is None:
        _forget_object(store, file)


def _found(file: File | None) -> File:
    if file is None:
        raise DataFileNotFound("There is no such file.", param="file_id")
    return file


def _check_form(upload: Upload) -> None:
    problems = []
    purpose = upload.fields.get("purpose")
    if purpose is None:
        problems.append(Problem("purpose", "is required", "missing_field", "Send purpose=fine-tune."))
    elif purpose != FilePurpose.FINE_TUNE:
        message = f"must be fine-tune; it is {purpose[:64]!r}"
        problems.append(Problem("purpose", message, "invalid_value", "Send purpose=fine-tune."))
    if any(name.startswith("expires_after") for name in upload.fields):
        fix = "Leave it out, and delete the file when it is no longer needed."
        problems.append(Problem("expires_after", "is not supported: files do not expire", "unsupported_field", fix))
    if problems:
        raise InvalidRequest.of(problems)


def _checked(upload: Upload, caller: Caller) -> File:
    """The row of a good file; raises InvalidFile with every problem that the check found."""
    with upload.path.open("rb") as opened:
        file_format = detect_format(upload.filename, opened.read(_HEAD_BYTES))
    report = inspect_file(upload.path, file_format)
    if report.problems:
        raise _invalid_file(report)
    file_id = new_file_id()
    return File(
        id=file_id,
        tenant_id=caller.tenant_id,
        filename=upload.filename,
        purpose=FilePurpose.FINE_TUNE,
        format=file_format,
        size_bytes=upload.size_bytes,
        sha256=upload.sha256,
        key=keys.data_file(file_id),
        rows=report.rows,
        distinct_prompts=report.distinct_prompts,
        prompt_kind=report.prompt_kind,
        columns=list(report.columns),
    )


def _record(sessions: Sessions, store: ObjectStore, once: Idempotency, file: File) -> JSONResponse:
    """The row of a stored object. If another request with the same key was faster, this object has no row and goes."""
    try:
        with sessions.begin() as session:
            if (first := once.first_answer(session)) is None:
                files.add(session, file)
                return once.answer(session, 201, FileObject.of(file))
    except RequestInFlight:
        _forget_object(store, file)
        raise
    _forget_object(store, file)
    return first


def _invalid_file(report: FileReport) -> InvalidFile:
    problems = list(report.problems)
    if report.more_problems:
        message = f"{report.more_problems} more problems are not shown"
        problems.append(Problem("file", message, "more_problems", "Correct these first, then upload again."))
    return InvalidFile.of(problems, subject="The file")


def _content_type(file: File) -> str:
    if file.format is not None:
        return CONTENT_TYPES[FileFormat(file.format)]
    return guess_type(file.filename)[0] or OCTETS


def _forget_object(store: ObjectStore, file: File) -> None:
    """Nothing names the object any more: if it cannot be deleted it costs space, and the caller nothing."""
    try:
        store.delete(file.key)
    except StoreError as error:
        log.warning("orphaned_object", key=file.key, reason=error.message)
