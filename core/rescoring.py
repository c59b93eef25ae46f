"""What another version of a reward would have made of what a job has written: the request, and the comparison. Pure.

"Reward" is the job's whole sum, which training and verdicts see; "term" is the one reward that was replaced in it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Literal

from pydantic import Field

from core.ids import JobId, RewardVersionId
from core.recorded import Coverage, RecordedStep, total_coverage
from core.reward_source import RewardForm
from core.signal import is_silent
from core.spec import Frozen

MOST_ROLLOUTS = 5000
MOST_EXAMPLES = 10
MOST_TEXT = 500
"""Characters of a prompt, a completion or an error in the report."""


class Rescore(Frozen):
    """What the grading worker is asked."""

    job_id: JobId
    version_id: RewardVersionId
    form: RewardForm | None = None
    """How the version is called; unset: as it was found at the upload."""
    term: str
    """Name of the job's term that the version stands in for."""
    from_step: int
    to_step: int
    limit: int
    """Rollouts; steps are taken whole, as evenly spread as it allows."""


class Regraded(Frozen):
    """One rollout, as it was and as it would have been."""

    step: int
    index: int
    group: int
    row: int
    prompt: str
    completion: str
    """Of long texts the ends are enough."""
    old: float | None
    new: float | None
    """The rewards. Null where there is none: an error never becomes a number."""
    old_term: float | None = None
    new_term: float | None = None
    error: str | None = None
    """What the new version met with."""
    other_error: bool = False
    """Whether another term's error leaves it without a reward."""


class StepMeans(Frozen):
    step: int
    rollouts: int
    coverage: Coverage | None = None
    run_silent_share: float | None = Field(None, description="Of all groups, as the run measured it.")
    silent_share_old: float | None = Field(None, description="Of the compared groups.")
    old: float | None
    new: float | None
    old_term: float | None
    new_term: float | None
    """Each over the rollouts that have a number there."""


class Ranks(Frozen):
    """How alike the two order the completions of a prompt, which is all that the advantages of GRPO are made of."""

    groups: int
    """In which both order something: where all are equal in one of the two, there is no order to compare."""
    tau_b: float | None
    """Kendall's, averaged over those groups: 1 the same order, 0 none in common, -1 the reverse."""
    pairs: int
    """Of completions in one group that both versions order."""
    flipped: int
    """Ordered the other way round."""
    newly_equal: int
    newly_ordered: int
    """Pairs that the old version ordered and the new one does not, and the reverse."""


class FlatGroups(Frozen):
    """Compared groups with a reward in which all rewards are equal (`core.signal.is_silent`): they teach nothing."""

    groups_old: int
    groups_new: int
    share_old: float | None
    share_new: float | None
    run_silent_share: float | None = Field(
        None, description="Of all groups of these steps, as the run measured it: an average over the steps."
    )


class Verdicts(Frozen):
    """At the job's pass threshold."""

    compared: int
    failed_to_passed: int
    passed_to_failed: int


class Example(Frozen):
    step: int
    index: int
    row: int
    prompt: str
    completion: str
    old: float
    new: float
    old_term: float | None
    new_term: float | None


class EvaluationChange(Frozen):
    """An evaluation's answers, greedy and sampled together."""

    name: str
    step: int
    answers: int
    mean_old: float | None
    mean_new: float | None
    verdicts: Verdicts
    errors: int
    no_answer: int
    left_out: int = 0
    """Answers that were not graded: out of time."""


class RescoreReport(Frozen):
    rollouts: int
    coverage: Coverage | None = Field(None, description="Of the steps that were graded, in all.")
    notes: tuple[str, ...] = Field(
        (), description="What the numbers do not show: a part of the record, things left out."
    )
    left_out: int
    """Recorded rollouts that were not graded: of groups that the record cut, over the limit, too large, out of time."""
    errors: int
    """Rollouts that the new version failed on: they are in no mean, no pair and no verdict."""
    other_errors: int = 0
    """Rollouts that have no reward because another term failed."""
    no_answer: int
    last_error: str | None
    mean_old: float | None
    mean_new: float | None
    steps: tuple[StepMeans, ...]
    ranks: Ranks
    flat: FlatGroups
    verdicts: Verdicts
    most_changed: tuple[Example, ...]
    evaluations: tuple[EvaluationChange, ...] | None = Field(
        description="Null where the job has other terms: their word on held-out answers is not kept."
    )


def compare(
    regraded: Sequence[Regraded],
    *,
    threshold: float,
    left_out: int = 0,
    evaluations: tuple[EvaluationChange, ...] | None = None,
    recorded: Mapping[int, RecordedStep] | None = None,
    notes: Sequence[str] = (),
) -> RescoreReport:
    """`recorded`: by step, of those that were graded."""
    recorded = recorded or {}
    errors = [one.error for one in regraded if one.error is not None]
    return RescoreReport(
        rollouts=len(regraded),
        coverage=total_coverage(recorded.values()),
        notes=tuple(notes),
        left_out=left_out,
        errors=len(errors),
        other_errors=sum(one.other_error and one.error is None for one in regraded),
        no_answer=sum(one.new is None and one.error is None and not one.other_error for one in regraded),
        last_error=errors[-1][:MOST_TEXT] if errors else None,
        mean_old=_mean(one.old for one in regraded),
        mean_new=_mean(one.new for one in regraded),
        steps=_steps(regraded, recorded),
        ranks=_ranks(regraded),
        flat=_flat(regraded, recorded.values()),
        verdicts=verdicts([(one.old, one.new) for one in regraded], threshold),
        most_changed=tuple(map(_example, _most_changed(regraded))),
        evaluations=evaluations,
    )


def evaluation_change(
    name: str,
    step: int,
    pairs: Sequence[tuple[float | None, float | None]],
    *,
    errors: int,
    threshold: float,
    left_out: int = 0,
) -> EvaluationChange:
    """`pairs`: old and new reward of each answer, and None for the `errors` as well as for what has no answer."""
    return EvaluationChange(
        name=name,
        step=step,
        answers=len(pairs),
        mean_old=_mean(old for old, _ in pairs),
        mean_new=_mean(new for _, new in pairs),
        verdicts=verdicts(pairs, threshold),
        errors=errors,
        no_answer=sum(new is None for _, new in pairs) - errors,
        left_out=left_out,
    )


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float | None:
    """(C - D) / sqrt((P - T1)(P - T2)) over all P pairs: C ordered alike, D the other way round, T1 and T2 tied in the
    first and in the second (Kendall 1945). None where all are tied in one of them.
    """
    agreement = ordered_one = ordered_other = 0
    for first, second in combinations(range(len(one)), 2):
        left, right = _sign(one[first] - one[second]), _sign(other[first] - other[second])
        agreement += left * right
        ordered_one += left != 0
        ordered_other += right != 0
    if not (ordered_one and ordered_other):
        return None
    return agreement / math.sqrt(ordered_one * ordered_other)


def verdicts(pairs: Sequence[tuple[float | None, float | None]], threshold: float) -> Verdicts:
    both = [(old >= threshold, new >= threshold) for old, new in pairs if old is not None and new is not None]
    return Verdicts(
        compared=len(both),
        failed_to_passed=both.count((False, True)),
        passed_to_failed=both.count((True, False)),
    )


def choose_steps(rollouts: Mapping[int, int], limit: int) -> list[int]:
    """Steps, evenly spread, whose rollouts (a number for each step) come to at most `limit`; at least one."""
    steps = sorted(rollouts)
    most = min(len(steps), limit // min(rollouts.values(), default=1))
    for count in range(most, 1, -1):
        chosen = [steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)]
        if sum(rollouts[step] for step in chosen) <= limit:
            return chosen
    return steps[-1:]


def _ranks(regraded: Sequence[Regraded]) -> Ranks:
    taus: list[float] = []
    signs: list[tuple[int, int]] = []
    for group in _groups(regraded).values():
        both = [(one.old, one.new) for one in group if one.old is not None and one.new is not None]
        tau = kendall_tau_b([old for old, _ in both], [new for _, new in both])
        taus += [] if tau is None else [tau]
        signs += [(_sign(a - c), _sign(b - d)) for (a, b), (c, d) in combinations(both, 2)]
    ordered = [(old, new) for old, new in signs if old and new]
    return Ranks(
        groups=len(taus),
        tau_b=fmean(taus) if taus else None,
        pairs=len(ordered),
        flipped=sum(old != new for old, new in ordered),
        newly_equal=sum(bool(old) and not new for old, new in signs),
        newly_ordered=sum(not old and bool(new) for old, new in signs),
    )


def _flat(regraded: Sequence[Regraded], recorded: Iterable[RecordedStep]) -> FlatGroups:
    groups = list(_groups(regraded).values())
    old = _graded(groups, "old")
    new = _graded(groups, "new")
    return FlatGroups(
        groups_old=len(old),
        groups_new=len(new),
        share_old=_mean(float(is_silent(rewards)) for rewards in old),
        share_new=_mean(float(is_silent(rewards)) for rewards in new),
        run_silent_share=_mean(step.run_silent_share for step in recorded),
    )


def _graded(groups: Iterable[Sequence[Regraded]], version: Literal["old", "new"]) -> list[list[float]]:
    """The rewards of each group that has one."""
    found = ([getattr(one, version) for one in group] for group in groups)
    return [rewards for group in found if (rewards := [reward for reward in group if reward is not None])]


def _steps(regraded: Sequence[Regraded], recorded: Mapping[int, RecordedStep]) -> tuple[StepMeans, ...]:
    """A step is there, too, of which no group is on record whole."""
    by_step = _by_step(regraded)
    steps = sorted({*by_step, *recorded})
    return tuple(_step_means(step, by_step.get(step, []), recorded.get(step)) for step in steps)


def _step_means(step: int, ones: Sequence[Regraded], recorded: RecordedStep | None) -> StepMeans:
    return StepMeans(
        step=step,
        rollouts=len(ones),
        coverage=None if recorded is None else recorded.coverage,
        run_silent_share=None if recorded is None else recorded.run_silent_share,
        silent_share_old=_mean(float(is_silent(rewards)) for rewards in _graded(_groups(ones).values(), "old")),
        old=_mean(one.old for one in ones),
        new=_mean(one.new for one in ones),
        old_term=_mean(one.old_term for one in ones),
        new_term=_mean(one.new_term for one in ones),
    )


def _most_changed(regraded: Sequence[Regraded]) -> list[Regraded]:
    """The largest changes first; of equal ones the earliest."""
    changed = [one for one in regraded if _change(one)]
    return sorted(changed, key=lambda one: (-_change(one), one.step, one.index))[:MOST_EXAMPLES]


def _change(one: Regraded) -> float:
    return 0.0 if one.old is None or one.new is None else abs(one.new - one.old)


def _example(one: Regraded) -> Example:
    assert one.old is not None, "it has changed"
    assert one.new is not None, "it has changed"
    return Example(
        step=one.step,
        index=one.index,
        row=one.row,
        prompt=one.prompt[-MOST_TEXT:],
        completion=one.completion[-MOST_TEXT:],
        old=one.old,
        new=one.new,
        old_term=one.old_term,
        new_term=one.new_term,
    )


def _by_step(regraded: Sequence[Regraded]) -> dict[int, list[Regraded]]:
    steps: defaultdict[int, list[Regraded]] = defaultdict(list)
    for one in regraded:
        steps[one.step].append(one)
    return dict(steps)


def _groups(regraded: Sequence[Regraded]) -> dict[tuple[int, int], list[Regraded]]:
    groups: defaultdict[tuple[int, int], list[Regraded]] = defaultdict(list)
    for one in regraded:
        groups[one.step, one.group].append(one)
    return dict(groups)


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _sign(difference: float) -> int:
    return (difference > 0) - (difference < 0)
