"""Which prompts a step is generated for: the data's order or prompts by weight, and further ones for silent groups.

Both change the objective and are asked for by the job (docs/trainer.md). No random number of the training stream is
drawn here: what is drawn follows from the seed, the step and the histories.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.rows import Row
from core.signal import SILENT, GroupOutcome
from core.spec import JobSpec
from worker.training.rollouts import RolloutBatch
from worker.training.sampling.draw import draw
from worker.training.sampling.drawn import Drawn, Generation, StepDraw
from worker.training.sampling.histories import UNSEEN, PromptHistories, SeenGroup, mean_chance, weight
from worker.training.sampling.refill import missing, trained_groups

Inputs = list[dict[str, Any]]
Generate = Callable[[Inputs], Any]
"""`GRPOTrainer._generate` of the prompts of these examples, one for each rollout."""
Grade = Callable[[Inputs, list[list[int]]], RolloutBatch]


@dataclass(frozen=True, slots=True)
class StepSampler:
    spec: JobSpec
    examples: Sequence[dict[str, Any]]
    """The data set: that of a row stands at the row's place."""
    rows: Sequence[Row]
    histories: PromptHistories
    """Kept where prompts are drawn by them."""

    def draw(self, inputs: Inputs, *, step: int, generate: Generate, grade: Grade) -> StepDraw:
        """`inputs`: what the data's order has for the step. `step`: optimizer steps taken so far."""
        first = self._chosen(inputs, step)
        everything = self._complete(first, generate, grade)
        outcomes = everything.outcomes(self.spec.pass_threshold)
        size, batches = len(outcomes), 0
        wanted = self.spec.hyperparameters.dynamic_sampling
        while wanted is not None and batches < wanted.max_extra_batches:
            count = missing(outcomes, size)
            further = self._further(everything.rows, count, key=f"{step} {batches + 1}") if count else []
            if not further:
                break
            more = self._complete(self._repeated(further), generate, grade)
            everything = everything.plus(more)
            outcomes += more.outcomes(self.spec.pass_threshold)
            batches += 1
        kept = trained_groups(outcomes, size)
        metrics = {**self._metrics(everything, outcomes, kept, batches), **self._expectations(everything.rows[:size])}
        self._note(everything, outcomes, step)
        return StepDraw(everything, kept, metrics)

    def _complete(self, inputs: Inputs, generate: Generate, grade: Grade) -> Drawn:
        generation = Generation(*generate(inputs))
        return Drawn(inputs, generation, grade(inputs, generation.completion_ids))

    def _chosen(self, inputs: Inputs, step: int) -> Inputs:
        """Where prompts are drawn by weight, as many as the data's order has for the step."""
        count = len(inputs) // self._group_size
        if self.spec.hyperparameters.prompt_sampling is None or count >= len(self.rows):
            return inputs
        return self._repeated(self._further([], count, key=f"{step} 0"))

    def _further(self, taken: Sequence[int], count: int, *, key: str) -> list[int]:
        """Places of rows that are not among `taken`, as many as there are up to `count`."""
        apart = set(taken)
        left = [place for place in range(len(self.rows)) if place not in apart]
        return [left[one] for one in draw(self._weights(left), count, key=f"{self.spec.seed} prompts {key}")]

    def _weights(self, places: Sequence[int]) -> list[float]:
        """Of rows that were never seen, most of a large file, the weight is worked out once."""
        wanted = self.spec.hyperparameters.prompt_sampling
        if wanted is None:
            return [1.0] * len(places)
        weigh = partial(weight, num_generations=self._group_size, floor=wanted.floor)
        unseen = weigh(UNSEEN)
        histories = (self.histories.prompts.get(self.rows[place].line) for place in places)
        return [unseen if history is None else weigh(history) for history in histories]

    def _repeated(self, places: Sequence[int]) -> Inputs:
        return [self.examples[place] for place in places for _ in range(self._group_size)]

    def _note(self, everything: Drawn, outcomes: Sequence[GroupOutcome], step: int) -> None:
        wanted = self.spec.hyperparameters.prompt_sampling
        if wanted is None:
            return
        threshold = self.spec.pass_threshold
        groups = zip(everything.rows, everything.batch.group_rewards, outcomes, strict=True)
        for place, rewards, outcome in groups:
            if outcome is not GroupOutcome.UNGRADED:
                passed = sum(reward >= threshold for reward in rewards)
                group = SeenGroup(step + 1, len(rewards), passed, outcome is GroupOutcome.MIXED)
                self.histories.note(self.rows[place].line, group, window=wanted.window)

    def _metrics(
        self, everything: Drawn, outcomes: Sequence[GroupOutcome], kept: Sequence[int], batches: int
    ) -> dict[str, float]:
        trained = [outcomes[group] for group in kept]
        graded = len(trained) - trained.count(GroupOutcome.UNGRADED)
        return {
            "draw/groups_generated": len(outcomes),
            "draw/groups_replaced": sum(group >= len(kept) for group in kept),
            "draw/trained_silent_share": sum(one in SILENT for one in trained) / graded if graded else 0.0,
            "draw/extra_batches": batches,
            "draw/prompts_used": len(set(everything.rows)),
        }

    def _expectations(self, chosen: Sequence[int]) -> dict[str, float]:
        """Before the step, so that they can be held against what came of it."""
        if self.spec.hyperparameters.prompt_sampling is None:
            return {}
        size, seen = self._group_size, self.histories.prompts
        chances = [self.histories.of(self.rows[place].line).chance_of_signal(size) for place in chosen]
        return {
            "draw/prompts_seen": len(seen),
            "draw/expected_signal": sum(chances) / len(chances),
            "draw/expected_signal_uniform": mean_chance(seen, prompts=len(self.rows), num_generations=size),
        }

    @property
    def _group_size(self) -> int:
        return self.spec.hyperparameters.num_generations


def step_sampler(
    spec: JobSpec, examples: Sequence[dict[str, Any]], rows: Sequence[Row], histories: PromptHistories
) -> StepSampler | None:
    """None where the job asks for neither: the trainer is as it is without this room then."""
    wanted = spec.hyperparameters
    if wanted.dynamic_sampling is None and wanted.prompt_sampling is None:
        return None
    return StepSampler(spec, examples, rows, histories)
