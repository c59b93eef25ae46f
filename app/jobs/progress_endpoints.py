"""What a run reports: its events, step metrics and rollouts."""

from typing import Annotated, Literal

from fastapi import Depends, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse

from app.auth import CallerDep
from app.dependencies import SessionsDep
from app.downloads import content_disposition
from app.errors import error_responses
from app.jobs.endpoints import JobIdPath
from app.jobs.metrics_export import metrics_csv, metrics_parquet
from app.jobs.progress_replies import EventObject, MetricsReply, RolloutObject, StepObject
from app.jobs.service import require_job
from app.paging import ListReply, PageDep, list_reply
from app.routing import resource_router
from core.db import events, progress
from core.errors import InvalidRequest, NotFound, Problem
from core.ids import EventId

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="jobs")

MAX_STEP = 2**31 - 1
Step = Annotated[int, Query(ge=0, le=MAX_STEP, description="An optimizer step; 0 is before the first.")]
ToStep = Annotated[int | None, Query(ge=0, le=MAX_STEP, description="The last step; unset: to the end.")]
CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"
_TABLES = {
    CSV: {"schema": {"type": "string"}, "example": "step,attempt,reward\n1,1,0.25\n"},
    PARQUET: {"schema": {"type": "string", "format": "binary"}},
}


@router.get("/events", summary="List the events of a job", responses=error_responses(404))
def list_job_events(
    sessions: SessionsDep,
    caller: CallerDep,
    job_id: JobIdPath,
    page: PageDep,
    after_seq: Annotated[
        int | None,
        Query(ge=0, le=MAX_STEP, description="Oldest first, from behind this `seq` on: to follow."),
    ] = None,
) -> ListReply[EventObject]:
    """Newest first, and back in time with `after`, as OpenAI's; or forward with `after_seq`."""
    if after_seq is not None and page.after is not None:
        fix = "Use `after` to go back in time, `after_seq` to follow."
        raise InvalidRequest.of([Problem("after_seq", "cannot stand beside `after`", "conflicting_fields", fix)])
    with sessions() as session:
        require_job(session, caller.tenant_id, job_id)
        if after_seq is not None:
            found = events.oldest_first(session, job_id, after_seq=after_seq, limit=page.fetch)
            return list_reply(found, page, EventObject.of)
        after = None if page.after is None else EventId(page.after)
        if after is not None and not events.exists(session, job_id, after):
            fix = "Leave `after` out to begin with the newest event."
            raise NotFound(f"The job has no event {after!r}.", param="after", fix=fix)
        return list_reply(events.newest_first(session, job_id, after=after, limit=page.fetch), page, EventObject.of)


def _keys(
    keys: Annotated[
        list[str] | None, Query(description="Only these metrics: `keys=reward,kl`, or `keys` more than once.")
    ] = None,
) -> list[str] | None:
    names = [name.strip() for text in keys or [] for name in text.split(",")]
    return [name for name in dict.fromkeys(names) if name] or None


Format = Literal["json", "csv", "parquet"]


def _format(
    output: Annotated[Format | None, Query(alias="format", description="Wins over `Accept`.")] = None,
    accept: Annotated[str, Header(description=f"`{CSV}` or `{PARQUET}`; else JSON.")] = "",
) -> Format:
    if output is not None:
        return output
    return "csv" if CSV in accept else "parquet" if PARQUET in accept else "json"


@router.get(
    "/metrics",
    summary="Get the metrics of a job",
    response_model=MetricsReply,
    responses={200: {"content": _TABLES, "description": "Steps in order"}, **error_responses(404)},
)
def get_job_metrics(
    sessions: SessionsDep,
    caller: CallerDep,
    job_id: JobIdPath,
    keys: Annotated[list[str] | None, Depends(_keys)],
    output: Annotated[Format, Depends(_format)],
    from_step: Step = 0,
    to_step: ToStep = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Steps in one answer; tables have no limit.")] = 1000,
) -> Response:
    """The numbers of every step: as JSON, or as a table in CSV or Parquet (`format`, or `Accept`)."""
    with sessions() as session:
        job = require_job(session, caller.tenant_id, job_id)
        is_table = output != "json"
        rows = (
            () if is_table else progress.steps(session, job_id, from_step=from_step, to_step=to_step, limit=limit + 1)
        )
    if is_table:
        export, media_type = (metrics_csv, CSV) if output == "csv" else (metrics_parquet, PARQUET)
        table = export(sessions, job_id, from_step=from_step, to_step=to_step, keys=keys)
        headers = {"Content-Disposition": content_disposition(f"{job_id}-metrics.{output}")}
        return StreamingResponse(table, headers=headers, media_type=media_type)
    wanted = None if keys is None else frozenset(keys)
    more = rows[limit].step if len(rows) > limit else None
    data = [StepObject.of(row, job, wanted) for row in rows[:limit]]
    return _json(MetricsReply(data=data, has_more=more is not None, next_from_step=more))


@router.get("/rollouts", summary="List the rollouts of a step", responses=error_responses(404))
def list_job_rollouts(
    sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath, page: PageDep, step: Step
) -> ListReply[RolloutObject]:
    """The rollouts of one step, by place in its generation batch: the completions of a group side by side."""
    with sessions() as session:
        require_job(session, caller.tenant_id, job_id)
        found = progress.rollouts(session, job_id, step=step)
    ids = [f"{record.step}-{record.index}" for record in found]
    if page.after is not None and page.after not in ids:
        raise NotFound(f"Step {step} has no rollout {page.after!r}.", param="after", fix="Leave `after` out.")
    start = 0 if page.after is None else ids.index(page.after) + 1
    return list_reply(found[start : start + page.fetch], page, RolloutObject.of)


def _json(reply: MetricsReply) -> JSONResponse:
    return JSONResponse(reply.model_dump(mode="json"))
