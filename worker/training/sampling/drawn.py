"""Groups that were generated and graded, before TRL makes a batch of them: joined, and picked by group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from core.signal import GroupOutcome, outcome_of
from worker.training.rollouts import RolloutBatch


class Generation(NamedTuple):
    """What `GRPOTrainer._generate` returns: lists with one entry a rollout, empty or None where there is nothing."""

    prompt_ids: Any
    completion_ids: Any
    tool_mask: Any
    completions: Any
    logprobs: Any
    extra_fields: Any
    images: Any
    tool_images: Any

    def take(self, rollouts: Sequence[int]) -> "Generation":
        return Generation(*([field[one] for one in rollouts] if field else field for field in self))

    def plus(self, other: "Generation") -> "Generation":
        return Generation(*(mine + theirs if mine else mine for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rollouts of some prompts, those of a group side by side in each of the three."""

    inputs: list[dict[str, Any]]
    """TRL's: the example of each rollout."""
    generation: Generation
    batch: RolloutBatch

    def outcomes(self, pass_threshold: float) -> list[GroupOutcome]:
        """Of each group."""
        return [outcome_of(rewards, pass_threshold) for rewards in self.batch.group_rewards]

    @property
    def rows(self) -> list[int]:
        """Of each group: the place of its prompt in the training rows."""
        return [example["row"] for example in self.inputs[:: self.batch.num_generations]]

    def take(self, groups: Iterable[int]) -> "Drawn":
        size = self.batch.num_generations
        rollouts = [group * size + one for group in groups for one in range(size)]
        batch = RolloutBatch(
            [self.batch.completions[one] for one in rollouts], [self.batch.scored[one] for one in rollouts], size
        )
        return Drawn([self.inputs[one] for one in rollouts], self.generation.take(rollouts), batch)

    def plus(self, other: "Drawn") -> "Drawn":
        batch = RolloutBatch(
            [*self.batch.completions, *other.batch.completions],
            [*self.batch.scored, *other.batch.scored],
            self.batch.num_generations,
        )
        return Drawn([*self.inputs, *other.inputs], self.generation.plus(other.generation), batch)


@dataclass(frozen=True, slots=True)
class StepDraw:
    """All that was generated for a step, and what of it is trained on."""

    everything: Drawn
    trained_groups: Sequence[int]
    """In the order of the batch."""
    metrics: Mapping[str, float]

    @property
    def trained(self) -> Drawn:
        return self.everything.take(self.trained_groups)

    def advantages(self, trained: Sequence[float]) -> list[float | None]:
        """Of every rollout; None where it is not trained on. `trained`: of those that are."""
        size = self.everything.batch.num_generations
        found: list[float | None] = [None] * len(self.everything.inputs)
        for place, group in enumerate(self.trained_groups):
            found[group * size : (group + 1) * size] = trained[place * size : (place + 1) * size]
        return found
