"""Two runs of one job, figure by figure. Pure.

A figure is one quantity at every place where it was taken: a metric over the steps, the rewards of an evaluation over
its answers. On one machine's CPU two runs of the same versions agree to the last bit; elsewhere a reader must know
which figures do not, from where on, and by how much.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeGuard

from cli.reproduction.record import Record
from core.metric_names import tells_time
from core.results import Answer, Evaluation, JobResults
from core.status import JobStatus


class Absent(Enum):
    ABSENT = "absent"
    """Only the other run has a value at this place."""


ABSENT = Absent.ABSENT
Value = float | str | bool | None | Absent


ANSWER_PARTS = {"completion": True, "completion_tokens": True, "finish_reason": True, "reward": False, "passed": False}
"""Of an answer; and whether the part follows (`_Series.follows`)."""
SCORES = ("baseline", "final", "best", "verdict")
"""Parts of results.json that are figures, and not a story of how they came to be."""


class Judgement(StrEnum):
    EQUAL = "equal"
    ACCEPTED = "accepted"
    """Not equal, and within the tolerance."""
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Pair:
    place: str
    """`step 3`, `line 17 greedy`; empty where there is only one place."""
    recorded: Value
    rerun: Value

    @property
    def relative(self) -> float | None:
        """How far two numbers are apart, as a share of the larger; None for what are not two numbers."""
        if not (_is_number(self.recorded) and _is_number(self.rerun)):
            return None
        largest = max(abs(self.recorded), abs(self.rerun))
        return 0.0 if self.recorded == self.rerun else abs(self.recorded - self.rerun) / largest


@dataclass(frozen=True, slots=True)
class Figure:
    group: str
    name: str
    judgement: Judgement
    places: int
    differing: int
    first: Pair | None
    """The first place at which it differs."""
    largest: float | None
    """The largest relative difference; None where nothing differs, or no two numbers do."""


def compare(recorded: Record, rerun: Record, *, tolerance: float = 0.0) -> list[Figure]:
    """Every figure that the recorded run has, or should have. `tolerance` is relative, and for numbers alone.

    Of a job that did not succeed, only what it had come to is compared: the rerun may have gone further.
    """
    whole = recorded.bundle.job.status is JobStatus.SUCCEEDED
    series = [
        *_status(recorded, rerun),
        *_metrics(recorded, rerun, whole=whole),
        *_evaluations(recorded, rerun, whole=whole),
        *_results(recorded, rerun),
        *_adapter(recorded, rerun),
    ]
    return [one.judged(tolerance) for one in series]


@dataclass(frozen=True, slots=True)
class _Series:
    group: str
    name: str
    pairs: list[Pair]
    follows: bool = False
    """From numbers that are compared themselves: under a tolerance it is for them to say whether it matters."""

    def judged(self, tolerance: float) -> Figure:
        differing = [pair for pair in self.pairs if pair.recorded != pair.rerun]
        relatives = [pair.relative for pair in differing]
        if not differing:
            judgement = Judgement.EQUAL
        elif tolerance and self._is_accepted(differing, tolerance):
            judgement = Judgement.ACCEPTED
        else:
            judgement = Judgement.DIFFERS
        return Figure(
            group=self.group,
            name=self.name,
            judgement=judgement,
            places=len(self.pairs),
            differing=len(differing),
            first=differing[0] if differing else None,
            largest=max((relative for relative in relatives if relative is not None), default=None),
        )

    def _is_accepted(self, differing: list[Pair], tolerance: float) -> bool:
        if self.follows:
            return all(ABSENT not in (pair.recorded, pair.rerun) for pair in differing)
        return all(pair.relative is not None and pair.relative <= tolerance for pair in differing)


def _status(recorded: Record, rerun: Record) -> Iterator[_Series]:
    """A person or a machine ends a job too; that says nothing of its figures."""
    status = recorded.bundle.job.status
    if status in (JobStatus.SUCCEEDED, JobStatus.FAILED):
        yield _Series("job", "status", [Pair("", status, rerun.bundle.job.status)])


def _metrics(recorded: Record, rerun: Record, *, whole: bool) -> Iterator[_Series]:
    steps = sorted(recorded.metrics.keys() | (rerun.metrics.keys() if whole else set()))
    rows = [_Row(f"step {step}", recorded.metrics.get(step, {}), rerun.metrics.get(step, {})) for step in steps]
    names = {name for row in rows for name in (*row.recorded, *row.rerun) if not tells_time(name)}
    for name in sorted(names):
        yield _Series("step metrics", name, _column(rows, name))


def _evaluations(recorded: Record, rerun: Record, *, whole: bool) -> Iterator[_Series]:
    for name in dict.fromkeys([*recorded.evaluations, *(rerun.evaluations if whole else ())]):
        first, second = (dict(_answers(run.evaluations.get(name))) for run in (recorded, rerun))
        rows = [_Row(place, first.get(place, {}), second.get(place, {})) for place in first | second]
        for part, follows in ANSWER_PARTS.items():
            yield _Series(f"evaluation {name}", part, _column(rows, part), follows=follows)


def _answers(evaluation: Evaluation | None) -> Iterator[tuple[str, dict[str, Value]]]:
    """By place: task by task, the greedy answer and then the sampled ones."""
    for task in () if evaluation is None else evaluation.tasks:
        yield f"line {task.task} greedy", _parts(task.greedy)
        for number, answer in enumerate(task.sampled, start=1):
            yield f"line {task.task} sample {number}", _parts(answer)


def _parts(answer: Answer) -> dict[str, Value]:
    return {part: getattr(answer, part) for part in ANSWER_PARTS}


def _results(recorded: Record, rerun: Record) -> Iterator[_Series]:
    """Scores and verdict, as the two documents have them."""
    if recorded.results is None:
        return
    first = dict(_scores(recorded.results, exclude_unset=True))
    row = _Row("", first, dict(() if rerun.results is None else _scores(rerun.results)))
    for name in first:  # what an older version did not write is no difference
        yield _Series("results.json", name, _column([row], name))


def _scores(results: JobResults, *, exclude_unset: bool = False) -> Iterator[tuple[str, Value]]:
    for part in SCORES:
        document = getattr(results, part).model_dump(mode="json", exclude={"sentence"}, exclude_unset=exclude_unset)
        yield from _leaves(part, document)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Value]]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _leaves(f"{name}.{key}", item)
        case list():
            for index, item in enumerate(value):
                yield from _leaves(f"{name}[{index}]", item)
        case _:
            yield name, value


def _adapter(recorded: Record, rerun: Record) -> Iterator[_Series]:
    digest = recorded.bundle.adapter_sha256
    if digest is not None:
        again = rerun.bundle.adapter_sha256
        yield _Series("adapter", "sha256", [Pair("", digest, ABSENT if again is None else again)], follows=True)


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    recorded: Mapping[str, Value]
    rerun: Mapping[str, Value]


def _column(rows: Iterable[_Row], name: str) -> list[Pair]:
    """The figure at the places where any of the two runs has it."""
    pairs = (Pair(row.place, row.recorded.get(name, ABSENT), row.rerun.get(name, ABSENT)) for row in rows)
    return [pair for pair in pairs if not pair.recorded is pair.rerun is ABSENT]


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
