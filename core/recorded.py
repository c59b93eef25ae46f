"""How much of what a job generated can be graded again, and how a report says so. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from core.spec import Frozen

MOST_BYTES = 64 * 1024 * 1024
"""Of stored rollouts and held-out answers, as JSON, that are read for one report."""


class Coverage(Frozen):
    """How much of what was generated is on record: of large steps the ledger keeps a part (`record` of the job)."""

    rollouts: int
    """Generated."""
    groups: int
    recorded_rollouts: int
    recorded_groups: int
    """On record with all their rollouts: no others are compared."""


class RecordedStep(Frozen):
    """What the ledger has of a step, beside the rollouts."""

    coverage: Coverage
    run_silent_share: float | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Recorded rollouts that were not graded, by the reason, and evaluations."""

    in_cut_groups: int = 0
    over_limit: int = 0
    too_large: int = 0
    no_time: int = 0
    evaluations: int = 0

    @property
    def rollouts(self) -> int:
        return self.in_cut_groups + self.over_limit + self.too_large + self.no_time


def total_coverage(recorded: Iterable[RecordedStep]) -> Coverage | None:
    """None of no steps."""
    parts = [step.coverage for step in recorded]
    if not parts:
        return None
    return Coverage(
        rollouts=sum(part.rollouts for part in parts),
        groups=sum(part.groups for part in parts),
        recorded_rollouts=sum(part.recorded_rollouts for part in parts),
        recorded_groups=sum(part.recorded_groups for part in parts),
    )


def notes_on(coverage: Coverage | None, left_out: LeftOut, *, reads_batches: bool) -> list[str]:
    """In plain words, what a reader of the report must know. `reads_batches`: whether the reward is of TRL's form."""
    notes = []
    if coverage is not None and coverage.recorded_groups < coverage.groups:
        notes.append(
            f"The record was cut: every number of rollouts is of the recorded groups, {coverage.recorded_groups} of "
            f"{coverage.groups}. Mixed groups are kept before silent ones, so these say nothing of the share of silent "
            "groups in the run; `run_silent_share` does."
        )
        if reads_batches:
            notes.append("The reward is given batches, and was given the recorded part of each, not what the run gave.")
    reasons = {
        "in groups that are not on record whole": left_out.in_cut_groups,
        "over the limit": left_out.over_limit,
        f"over the {MOST_BYTES // 2**20} MiB that are read for one report": left_out.too_large,
        "for want of time": left_out.no_time,
    }
    if left_out.rollouts:
        parts = ", ".join(f"{count} {why}" for why, count in reasons.items() if count)
        notes.append(f"Of the recorded rollouts {left_out.rollouts} were left out: {parts}.")
    if left_out.evaluations:
        notes.append(f"Evaluations left out, for want of time or as too large: {left_out.evaluations}.")
    return notes
