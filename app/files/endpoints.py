"""`/v1/files`: OpenAI's files, for data sets and results."""

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Depends, Path, Query, Request, Response

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep, StoreDep
from app.downloads import DOWNLOAD_RESPONSES, download
from app.errors import error_responses
from app.files import service
from app.files.schemas import FileDeleted, FileObject, FilePurpose
from app.idempotency import UploadIdempotencyDep
from app.paging import ListReply, PageDep, list_reply
from app.routing import resource_router
from app.uploads import Upload, form_schema, receive_upload
from core.ids import FileId

router = resource_router("/v1/files", tag="files")

_FORM = form_schema(
    "JSONL, CSV or Parquet; every row has a `prompt`, `messages`, `question` or `problem`.",
    {"purpose": {"type": "string", "enum": ["fine-tune"]}},
    required=["purpose"],
)

FileIdPath = Annotated[FileId, Path(description="`file-...`")]


async def _upload(request: Request, _caller: CallerDep, settings: SettingsDep) -> AsyncIterator[Upload]:
    async with receive_upload(request, max_bytes=settings.max_file_bytes, fields=service.FORM_FIELDS) as upload:
        yield upload


@router.post(
    "",
    status_code=201,
    response_model=FileObject,
    summary="Upload a data set",
    responses=error_responses(409, 413, 415),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
def create_file(
    sessions: SessionsDep,
    store: StoreDep,
    caller: CallerDep,
    once: UploadIdempotencyDep,
    upload: Annotated[Upload, Depends(_upload)],
) -> Response:
    """Every row is read and checked before the file exists. All problems come back at once, with their lines."""
    return service.create(sessions, store, caller, once, upload)


@router.get("", summary="List files")
def list_files(
    sessions: SessionsDep,
    caller: CallerDep,
    page: PageDep,
    purpose: Annotated[FilePurpose | None, Query(description="Only files of this purpose.")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="By time of creation.")] = "desc",
) -> ListReply[FileObject]:
    """Newest first, unless `order=asc`."""
    rows = service.page(sessions, caller, page, purpose, oldest_first=order == "asc")
    return list_reply(rows, page, FileObject.of)


@router.get("/{file_id}", summary="Get a file", responses=error_responses(404))
def get_file(sessions: SessionsDep, caller: CallerDep, file_id: FileIdPath) -> FileObject:
    """What is known of the file; its bytes are under `/content`."""
    return FileObject.of(service.get(sessions, caller, file_id))


@router.delete("/{file_id}", summary="Delete a file", responses=error_responses(404, 409))
def delete_file(sessions: SessionsDep, store: StoreDep, caller: CallerDep, file_id: FileIdPath) -> FileDeleted:
    """Refused with 409 while a job that is not finished needs the file."""
    service.delete(sessions, store, caller, file_id)
    return FileDeleted(id=file_id)


@router.head("/{file_id}/content", include_in_schema=False, name="head_file_content")
@router.get("/{file_id}/content", summary="Download a file", response_class=Response, responses=DOWNLOAD_RESPONSES)
def download_file(
    request: Request, sessions: SessionsDep, store: StoreDep, caller: CallerDep, file_id: FileIdPath
) -> Response:
    """The bytes as they were uploaded. `Range`, `HEAD` and `If-None-Match` work; on S3 this redirects."""
    return download(request, store, service.content(sessions, caller, file_id))
