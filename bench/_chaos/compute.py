"""What the trainers' own log says about who computed when: evidence that does not come from the ledger."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench._chaos.trainer import Computed


@dataclass(frozen=True, slots=True)
class Span:
    """A job's time in which its supervisor was frozen: nobody could end the trainer that computed on."""

    job_id: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Overlap:
    job_id: str
    earlier: int
    later: int
    seconds: float
    """From the first to the last slice that the earlier attempt computed once the later one did."""


def overlaps(log: Sequence[Computed], frozen: Iterable[Span]) -> list[Overlap]:
    """Where two attempts of one job computed at the same time, spans that explain it left out."""
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for span in frozen:
        spans[span.job_id].append(span)
    by_job: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in log:
        if line.kind == "slice" and not any(span.begin <= line.at <= span.end for span in spans[line.job_id]):
            by_job[line.job_id][line.attempt].append(line.at)
    return [found for job_id, attempts in by_job.items() for found in _of_job(job_id, attempts)]


def steps_begun(log: Sequence[Computed]) -> set[tuple[str, int, int]]:
    """(job, attempt, step) that somebody really computed at."""
    return {(line.job_id, line.attempt, line.step + 1) for line in log if line.kind == "slice"}


def _of_job(job_id: str, attempts: dict[int, list[float]]) -> Iterator[Overlap]:
    for earlier, later in pairwise(sorted(attempts)):
        late = [at for at in attempts[earlier] if at > min(attempts[later])]
        if late:
            yield Overlap(job_id, earlier, later, max(late) - min(late))
