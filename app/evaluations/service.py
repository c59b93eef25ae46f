"""Any two evaluations of the same held-out tasks, judged as a job's baseline and final are."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.evaluations.schemas import Comparison, EvaluationList, Side
from app.jobs.service import require_job
from core import verdict
from core.db import progress
from core.db.models import Job
from core.db.session import Sessions
from core.errors import Conflict, NotFound
from core.ids import JobId, TenantId
from core.results import Decoding, Evaluation
from core.spec import JobSpec


class EvaluationNotFound(NotFound):
    """The job has no evaluation of that name, or not yet."""

    code = "evaluation_not_found"
    default_fix = "GET .../evaluations lists those that there are."


class SpecUnreadable(Conflict):
    """The job was made by another version of this server, which this one cannot read."""

    code = "spec_unreadable"


@dataclass(frozen=True, slots=True)
class _Taken:
    job: Job
    spec: JobSpec
    name: str
    evaluation: Evaluation

    @property
    def side(self) -> Side:
        return Side(job_id=self.job.id, evaluation=self.name, step=self.evaluation.step)


def list_evaluations(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> EvaluationList:
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        evaluations = progress.evaluations_by_name(session, job.id)
    scores = [verdict.score(name, evaluation) for name, evaluation in evaluations.items()]
    try:
        spec = JobSpec.model_validate(job.spec)
    except ValidationError:
        return EvaluationList(decoding=None, best=None, data=scores)
    decoding, most = spec.evaluation.decoding, spec.grading.max_error_share
    best = verdict.best(evaluations, decoding=decoding, max_error_share=most)
    return EvaluationList(decoding=decoding, best=best, data=scores)


def compare(
    sessions: Sessions,
    tenant_id: TenantId,
    job_id: JobId,
    *,
    before: str,
    after: str,
    against: JobId | None,
    decoding: Decoding | None,
) -> Comparison:
    """`before` is an evaluation of the job `against`, where one is named, else of the job itself."""
    with sessions() as session:
        second = _taken(session, require_job(session, tenant_id, job_id), after, param="after")
        other = second.job if against is None else require_job(session, tenant_id, against)
        first = _taken(session, other, before, param="before")
    decoding = decoding or second.spec.evaluation.decoding
    judged = verdict.judge(
        first.evaluation,
        second.evaluation,
        decoding=decoding,
        seed=second.spec.seed,
        but=_difference(first.spec, second.spec, decoding) or _errors([first, second], decoding),
    )
    return Comparison(before=first.side, after=second.side, verdict=judged)


def _taken(session: Session, job: Job, name: str, *, param: str) -> _Taken:
    evaluations = progress.evaluations_by_name(session, job.id)
    if name not in evaluations:
        raise EvaluationNotFound(f"{job.id} has no evaluation `{name[:64]}`.", param=param)
    try:
        return _Taken(job, JobSpec.model_validate(job.spec), name, evaluations[name])
    except ValidationError as error:
        raise SpecUnreadable(f"This version cannot read the spec of {job.id}.", param=param) from error


def _difference(first: JobSpec, second: JobSpec, decoding: Decoding) -> str | None:
    """What two jobs must have in common for their answers to be worth the same; their tasks are looked at elsewhere."""
    graders = [
        [(term.name, term.weight, term.gate, term.source_sha256) for term in spec.rewards] for spec in (first, second)
    ]
    if _held_out(first) != _held_out(second):
        return "the two jobs held out rows of different data, so the same prompt may have had another right answer"
    if graders[0] != graders[1]:
        return "the two jobs were graded by different rewards, versions or weights"
    if first.hyperparameters.max_completion_length != second.hyperparameters.max_completion_length:
        return "the two jobs cut completions at different lengths"
    if decoding == "sampled" and _sampling(first) != _sampling(second):
        return "the two jobs sampled their answers at different temperatures or top_p"
    return None


def _held_out(spec: JobSpec) -> tuple[str, float | None, int | None]:
    """The digest of the data, and how the rows were chosen where the training file's were."""
    if spec.held_out is not None:
        return spec.held_out.sha256, None, None
    return spec.training.sha256, spec.evaluation.held_out_fraction, spec.seed


def _errors(taken: Sequence[_Taken], decoding: Decoding) -> str | None:
    """`grading.max_error_share` is the job's own rule, here as for its verdict."""
    for one in taken:
        most = one.spec.grading.max_error_share
        if not one.evaluation.is_reliable(decoding, most):
            return f"more than {most:.0%} of the answers of `{one.name}` could not be graded"
    return None


def _sampling(spec: JobSpec) -> tuple[float, float]:
    """Temperature and top_p of sampled answers."""
    trained = spec.hyperparameters
    return spec.evaluation.temperature or trained.temperature, trained.top_p
