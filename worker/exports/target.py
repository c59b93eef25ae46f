"""What a target of exports is: a run there, that is named after the job and can say how far it has come.

A `Stream` takes steps one after the other, and after a crash of whoever it is asked for the last one that it has. So
nothing is doubled and nothing is missing: a cursor of our own could only be written before or after the target's, and
what dies in between would lose a step or send it twice. A `Document` is written whole, again and again, from what the
ledger says then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol, runtime_checkable

from core.errors import ServiceError
from core.ids import JobId
from core.status import JobStatus

NONE_YET = -1
"""The last step of a run without any; 0 is the baseline's."""


class ExportFailed(ServiceError):
    """A target could not be reached, or did not take what was sent."""

    code = "export_failed"
    status = 503
    default_fix = "The exporter's log has the whole error; the service's address and key are settings of the exporter."


class ExportNotConfigured(ExportFailed):
    """The exporter does not know where the target is, or with which key."""

    code = "export_not_configured"


class ExportPackageMissing(ExportFailed):
    """The target's client is not installed where the exporter runs."""

    code = "export_package_missing"
    default_fix = "On the exporter: pip install 'podium[exports]'."


class ExportBroke(ExportFailed):
    """The process that talks to the target crashed, or was ended because a call took too long."""

    code = "export_broke"


@dataclass(frozen=True, slots=True)
class Point:
    """All that is known of one step. It will not change: evaluations at the step are in it."""

    step: int
    at: datetime
    attempt: int
    """Of the job: which one has reported it."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run there is created with."""

    job_id: JobId
    started_at: datetime
    config: Mapping[str, Any]
    """JSON: the spec and the digests in it, the base model, the owner's metadata."""

    def flat_config(self) -> dict[str, bool | int | float | str]:
        """`{"spec.hyperparameters.beta": 0.0, ...}`, without nulls."""
        return dict(_flatten("", self.config))


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How the job ended."""

    status: JobStatus
    at: datetime
    numbers: Mapping[str, float]
    """Evaluations and verdict: `final/greedy/pass_rate`, `verdict/p_value`."""
    words: Mapping[str, str]
    """`status`, `verdict`, `verdict_sentence`, ..."""


@runtime_checkable
class Stream(Protocol):
    where: str
    """For people; known once it is open."""

    def open(self, facts: RunFacts) -> int:
        """Begin the job's run there, or go on with it; the last step that it has, or `NONE_YET`."""

    def send(self, points: Sequence[Point]) -> None:
        """In order of steps, each later than what was sent before."""

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        """The last points, maybe none, and the end. May be repeated, in another process too."""

    def leave(self) -> None:
        """The job waits or is paused, or the exporter goes; somebody will open the run again."""


class Document(Protocol):
    where: str
    is_live: ClassVar[bool]
    """Whether to write it while the job runs too; else only at its end."""

    def write(self, facts: RunFacts, points: Sequence[Point], conclusion: Conclusion | None) -> None:
        """Everything up to now, in place of what was written before."""


Target = Stream | Document


def _flatten(path: str, value: Any) -> list[tuple[str, bool | int | float | str]]:
    if isinstance(value, Mapping):
        return [item for key, inner in value.items() for item in _flatten(f"{path}.{key}" if path else key, inner)]
    if isinstance(value, list | tuple):
        return [item for number, inner in enumerate(value) for item in _flatten(f"{path}.{number}", inner)]
    return [] if value is None else [(path, value)]
