"""How much of the training was paid for groups that taught nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.learning.numbers import StepNumbers
from core.taught import Bill

NOT_THE_STEPS = ("evaluation", "checkpoint", "export")
"""Phases that stand on the line of a step and have nothing to do with its groups."""
SKIPPED, TRAINED_SILENT = "fast/rollouts_skipped", "draw/trained_silent_share"
"""The second where groups were chosen by their rewards: less than the share of all that was generated."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Seconds of one step."""

    total: float
    silent: float
    """Share of the groups that taught nothing; 1 where the gradient was 0."""
    trained_silent: float
    """The same, of the groups that went into the passes."""
    is_spared: bool
    """Whether the fast path left the silent rollouts out of the passes."""
    generation: float
    reward: float
    logprobs: float
    """The pass without a gradient comes before anything is left out."""
    passes: float
    other: float
    """The rest of a step whose gradient was 0; 0 of any other."""


def bill_of(steps: Sequence[StepNumbers]) -> Bill | None:
    costs = list(_costs(steps))
    seconds = sum(one.total for one in costs)
    if not seconds:
        return None
    generation = sum(one.silent * one.generation for one in costs)
    reward = sum(one.silent * one.reward for one in costs)
    passes = sum(one.trained_silent * (one.logprobs + (0.0 if one.is_spared else one.passes)) for one in costs)
    other = sum(one.other for one in costs)
    wasted = generation + reward + passes + other
    return Bill(
        seconds=seconds,
        without_gradient_s=wasted,
        generation_s=generation,
        reward_s=reward,
        passes_s=passes,
        other_s=other,
        share=wasted / seconds,
        spared_s=_spared(costs),
    )


def _costs(steps: Sequence[StepNumbers]) -> Iterator[_Step]:
    """A step that uses the rollouts of an earlier one has its silence too."""
    silent, trained_silent, is_spared = 0.0, 0.0, False
    for one in steps:
        metrics = one.metrics
        if metrics.get("signal/silent_share") is not None:
            silent, is_spared = _number(metrics, "signal/silent_share"), _number(metrics, SKIPPED) > 0
            trained_silent = _number(metrics, TRAINED_SILENT) if TRAINED_SILENT in metrics else silent
        seconds = {name: _number(metrics, f"phase/{name}_s") for name in ("forward", "backward", *NOT_THE_STEPS)}
        total, passes = _number(metrics, "phase/total_s"), seconds["forward"] + seconds["backward"]
        generation, reward, logprobs = (
            _number(metrics, f"phase/{name}_s") for name in ("generation", "reward", "logprobs_no_grad")
        )
        rest = total - generation - reward - logprobs - sum(seconds.values())
        is_still = metrics.get("grad_norm") == 0.0
        shares = (1.0, 1.0) if is_still else (silent, trained_silent)
        other = max(0.0, rest) if is_still else 0.0
        yield _Step(total, *shares, is_spared, generation, reward, logprobs, passes, other)


def _spared(costs: Sequence[_Step]) -> float | None:
    taught = sum(1 - one.trained_silent for one in costs)
    if not taught:
        return None
    paid = sum(one.passes * (1.0 if one.is_spared else 1 - one.trained_silent) for one in costs)
    return paid / taught * sum(one.trained_silent for one in costs if one.is_spared)


def _number(metrics: Mapping[str, float | None], name: str) -> float:
    return metrics.get(name) or 0.0
