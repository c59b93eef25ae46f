"""Which prompts could teach: the groups of every step, by prompt and over time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.signal import GroupOutcome
from core.taught import MOST_ROWS, PromptKind, Prompts, Window

WINDOWS = 10

RIGHT, WRONG, MIXED = GroupOutcome.ALL_RIGHT, GroupOutcome.ALL_WRONG, GroupOutcome.MIXED


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The groups of one generation batch: lines of the training file, by what became of their completions."""

    step: int
    rows: Mapping[GroupOutcome, Sequence[int]]

    def count(self, outcome: GroupOutcome) -> int:
        return len(self.rows.get(outcome, ()))


def prompts_of(steps: Sequence[StepGroups]) -> Prompts:
    """Groups of which nothing could be graded say nothing."""
    outcomes: defaultdict[int, set[GroupOutcome]] = defaultdict(set)
    for one in steps:
        for outcome, rows in one.rows.items():
            for row in rows:
                outcomes[row].add(outcome)
    graded = {row: found - {GroupOutcome.UNGRADED} for row, found in sorted(outcomes.items())}
    return Prompts(
        seen=len(graded),
        ever_mixed=_kind([row for row, found in graded.items() if MIXED in found]),
        always_right=_kind([row for row, found in graded.items() if found == {RIGHT}]),
        always_wrong=_kind([row for row, found in graded.items() if found == {WRONG}]),
        never_mixed=_kind([row for row, found in graded.items() if found == {RIGHT, WRONG}]),
    )


def windows_of(steps: Sequence[StepGroups]) -> tuple[Window, ...]:
    """`WINDOWS` parts that are as equal as can be, or one for each step where there are fewer."""
    return tuple(_window(part) for part in _parts(steps))


def _kind(rows: Sequence[int]) -> PromptKind:
    return PromptKind(prompts=len(rows), rows=tuple(rows[:MOST_ROWS]))


def _parts(steps: Sequence[StepGroups]) -> Iterator[Sequence[StepGroups]]:
    count = min(WINDOWS, len(steps))
    for number in range(count):
        yield steps[number * len(steps) // count : (number + 1) * len(steps) // count]


def _window(part: Sequence[StepGroups]) -> Window:
    mixed, right, wrong = (sum(one.count(outcome) for one in part) for outcome in (MIXED, RIGHT, WRONG))
    return Window(
        from_step=part[0].step,
        to_step=part[-1].step,
        groups=mixed + right + wrong,
        mixed=mixed,
        all_right=right,
        all_wrong=wrong,
        prompts=len({row for one in part for rows in one.rows.values() for row in rows}),
        mixed_prompts=len({row for one in part for row in one.rows.get(MIXED, ())}),
    )
