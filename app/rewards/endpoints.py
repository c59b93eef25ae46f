"""`/v1/rewards`: reward functions, uploaded as a file or as JSON."""

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel

from app.auth import CallerDep
from app.bodies import capped, read_json, too_large
from app.dependencies import SessionsDep, SettingsDep
from app.errors import error_responses
from app.idempotency import UploadIdempotencyDep
from app.paging import ListReply, PageDep, list_reply
from app.rewards import service
from app.rewards.reports import ReportsDep, RewardReport
from app.rewards.schemas import (
    RewardCreate,
    RewardCreated,
    RewardDetail,
    RewardObject,
    RewardVersionCreate,
    RewardVersionCreated,
    RewardVersionSource,
)
from app.routing import resource_router
from app.uploads import form_schema, is_form, receive_upload
from app.validation import parse
from core.ids import FileId, RewardId
from core.settings import Settings

router = resource_router("/v1/rewards", tag="rewards")

RewardIdPath = Annotated[RewardId, Path(description="`rew-...`")]
Version = TypeVar("Version", bound=RewardVersionCreate)
DataSet = Annotated[FileId | None, Query(description="Only the report on this data set; unset: the newest one.")]
VersionPath = Annotated[int, Path(ge=1, lt=2**31, description="1, 2, 3, ...")]


async def _reward(request: Request, _caller: CallerDep, settings: SettingsDep) -> RewardCreate:
    if not is_form(request):
        return await _json(request, RewardCreate, settings)
    async with receive_upload(
        request, max_bytes=settings.max_reward_bytes, fields=("name", *service.VERSION_FIELDS)
    ) as upload:
        return service.create_of_upload(upload)


async def _version(request: Request, _caller: CallerDep, settings: SettingsDep) -> RewardVersionCreate:
    if not is_form(request):
        return await _json(request, RewardVersionCreate, settings)
    async with receive_upload(request, max_bytes=settings.max_reward_bytes, fields=service.VERSION_FIELDS) as upload:
        return service.version_of_upload(upload)


async def _json(request: Request, model: type[Version], settings: Settings) -> Version:
    wanted = parse(model, await read_json(capped(request, settings.max_body_bytes)))
    if len(wanted.source.encode()) > settings.max_reward_bytes:
        raise too_large("source", settings.max_reward_bytes)
    return wanted


def _file_or_json(model: type[BaseModel], *fields: str) -> dict[str, Any]:
    """The body, which FastAPI does not read and therefore does not document; the replies' models are known to it."""
    form = form_schema("A `.py` file.", {name: {"type": "string"} for name in fields})
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "",
    status_code=201,
    response_model=RewardCreated,
    summary="Create a reward",
    responses=error_responses(409, 413, 415),
    openapi_extra=_file_or_json(RewardCreate, "name", *service.VERSION_FIELDS),
)
def create_reward(
    reports: ReportsDep,
    caller: CallerDep,
    once: UploadIdempotencyDep,
    wanted: Annotated[RewardCreate, Depends(_reward)],
) -> Response:
    """A `.py` file as a form, or its source as JSON. It is parsed and checked here, and runs only on a worker.

    The grading worker probes it: what it pays for junk, whether it is stable, how fast it is. The reply waits 3 s for
    that report; later, GET its report.
    """
    return service.create(reports, caller, once, wanted)


@router.get("", summary="List rewards")
def list_rewards(sessions: SessionsDep, caller: CallerDep, page: PageDep) -> ListReply[RewardObject]:
    """Newest first, each with its newest version."""
    return list_reply(service.page(sessions, caller, page), page, lambda row: RewardObject.of(*row))


@router.get("/{reward_id}", summary="Get a reward", responses=error_responses(404))
def get_reward(sessions: SessionsDep, caller: CallerDep, reward_id: RewardIdPath) -> RewardDetail:
    """The reward, with all of its versions."""
    return service.get(sessions, caller, reward_id)


@router.post(
    "/{reward_id}/versions",
    status_code=201,
    response_model=RewardVersionCreated,
    summary="Add a version",
    responses={
        200: {"model": RewardVersionCreated, "description": "Nothing changed: the newest version."},
        **error_responses(404, 409, 413, 415),
    },
    openapi_extra=_file_or_json(RewardVersionCreate, *service.VERSION_FIELDS),
)
def create_reward_version(
    reports: ReportsDep,
    caller: CallerDep,
    once: UploadIdempotencyDep,
    reward_id: RewardIdPath,
    wanted: Annotated[RewardVersionCreate, Depends(_version)],
) -> Response:
    """Versions never change: jobs stay on the one they were created with. Each is probed, as a new reward is.

    The newest source again, with another `training_file`, is probed with that.
    """
    return service.add_version(reports, caller, once, reward_id, wanted)


@router.get("/{reward_id}/versions/{version}", summary="Get a version", responses=error_responses(404))
def get_reward_version(
    sessions: SessionsDep, caller: CallerDep, reward_id: RewardIdPath, version: VersionPath
) -> RewardVersionSource:
    """The version, with its source."""
    return RewardVersionSource.of(service.get_version(sessions, caller, reward_id, version))


@router.get("/{reward_id}/report", summary="Get a report", responses=error_responses(404))
def get_reward_report(
    sessions: SessionsDep, caller: CallerDep, reward_id: RewardIdPath, training_file: DataSet = None
) -> RewardReport:
    """What the probe of the newest version found."""
    return service.get_report(sessions, caller, reward_id, None, training_file)


@router.get(
    "/{reward_id}/versions/{version}/report", summary="Get a report on a version", responses=error_responses(404)
)
def get_reward_version_report(
    sessions: SessionsDep,
    caller: CallerDep,
    reward_id: RewardIdPath,
    version: VersionPath,
    training_file: DataSet = None,
) -> RewardReport:
    """What the probe of the version found."""
    return service.get_report(sessions, caller, reward_id, version, training_file)
