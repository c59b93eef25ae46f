"""From rows of the ledger to what targets are told. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from core import verdict
from core.db.models import EvaluationRecord, Job, StepMetrics
from core.results import Evaluation, EvaluationScore, JobResults
from worker.exports.target import Conclusion, Point, RunFacts


def run_facts(job: Job) -> RunFacts:
    assert job.started_at is not None, "a job that never began is not exported"
    config = {
        "job_id": job.id,
        "model": job.model,
        "suffix": job.suffix,
        "seed": job.seed,
        "metadata": job.metadata_,
        "spec": job.spec,
    }
    return RunFacts(job_id=job.id, started_at=job.started_at, config=config)


def points_of(steps: Sequence[StepMetrics], evaluations: Sequence[EvaluationRecord]) -> list[Point]:
    """In order. An evaluation belongs to its step, the baseline to step 0; of two at one step the later counts."""
    found: dict[int, Point] = {}
    for row in steps:
        values = {name: value for name, value in row.metrics.items() if value is not None}
        found[row.step] = Point(row.step, row.created_at, row.attempt, values)
    for record in evaluations:
        values = _evaluation_values(record)
        known = found.get(record.step)
        if known is None:
            found[record.step] = Point(record.step, record.created_at, record.attempt, values)
        else:
            found[record.step] = Point(known.step, known.at, known.attempt, {**known.values, **values})
    return [found[step] for step in sorted(found)]


def conclusion_of(job: Job, results: JobResults | None, *, at: datetime) -> Conclusion:
    """`results` are those of a job that succeeded."""
    words = {"status": job.status.value, "status_reason": job.status_reason}
    numbers: dict[str, float | None] = {"attempts": job.attempt, "preemptions": job.preemptions}
    if results is not None:
        words |= {"verdict": results.verdict.outcome, "verdict_sentence": results.verdict.sentence}
        numbers |= dict(_result_numbers(results))
    return Conclusion(
        status=job.status,
        at=at,
        numbers={name: number for name, number in numbers.items() if number is not None},
        words={name: str(word) for name, word in words.items() if word is not None},
    )


def _result_numbers(results: JobResults) -> Iterator[tuple[str, float | None]]:
    for name, score in (("baseline", results.baseline), ("best", results.best), ("final", results.final)):
        yield from _score_values(name, score)
    yield "best/step", results.best.step
    judged = results.verdict
    yield "verdict/tasks", judged.tasks
    yield "verdict/fixed", judged.fixed
    yield "verdict/broken", judged.broken
    yield "verdict/p_value", judged.p_value
    yield "verdict/change_points", judged.change_points
    yield "verdict/mean_reward_change", judged.mean_reward_change
    yield "cost/gpu_seconds", results.cost.gpu_seconds
    yield "cost/usd", results.cost.usd


def _evaluation_values(record: EvaluationRecord) -> dict[str, float]:
    evaluation = Evaluation.model_validate(record.evaluation)
    pairs = _score_values("eval", verdict.score(record.name, evaluation))
    return {name: value for name, value in pairs if value is not None}


def _score_values(prefix: str, score: EvaluationScore) -> Iterator[tuple[str, float | None]]:
    for decoding, one in (("greedy", score.greedy), ("sampled", score.sampled)):
        yield f"{prefix}/{decoding}/pass_rate", one.pass_rate
        yield f"{prefix}/{decoding}/mean_reward", one.mean_reward
        yield f"{prefix}/{decoding}/errors", one.errors if one.n else None
