"""TRL's trainer with our graders, our journal, a clock on each phase, and exact resumption.

Written against TRL 1.16.0, the pinned version. Every override calls its parent; none of the algorithm is changed.
Which prompts a step is trained on is TRL's choice too, unless the job asks otherwise (`worker.training.sampling`).
Below it stands the fast path (`worker.training.fast_path`), which leaves out what changes no gradient.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from trl.trainer.utils import RepeatSampler

from core.rows import Row
from core.signal import is_silent
from core.watch import WatchedField
from worker.run_directory import RolloutsDone
from worker.training.fast_path.support import Saving, obstacles
from worker.training.fast_path.trainer import FastPathTrainer
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Tally
from worker.training.rewards import (
    Completion,
    GradingWatch,
    RewardColumn,
    Rewards,
    grader_metrics,
    reward_metrics,
)
from worker.training.rollouts import RolloutBatch, find_signal, journal_entry, length_metrics, spread_metrics
from worker.training.sampling.drawn import Drawn
from worker.training.sampling.sampler import StepSampler
from worker.training.sampling.statistics import trl_metrics
from worker.training.team.team import ALONE, Team
from worker.training.text_health import text_metrics
from worker.training.vllm.sampler import ColocatedSampler
from worker.training.watch import Watch


class RolloutBuffer(NamedTuple):
    """The rollouts that later steps still use (`num_iterations` > 1), and where in them training stands."""

    step: int
    """TRL's count of forward and backward passes."""
    batches: Any
    """TRL's `_buffered_inputs`; None where the next pass makes new ones."""


def save_buffer(buffer: RolloutBuffer, folder: Path, *, rank: int = 0) -> None:
    torch.save({"step": buffer.step, "buffer": buffer.batches}, folder / _buffer_file(rank))


def _buffer_file(rank: int) -> str:
    return f"rollout_buffer_{rank}.pt" if rank else "rollout_buffer.pt"


class EpochRepeatSampler(RepeatSampler):
    """TRL's sampler draws each epoch's order from a generator of its own, which no checkpoint keeps.

    Told the epoch, it winds the generator forward to it: the same orders as in a run that never stopped.
    `accelerate.DataLoaderShard.set_epoch` calls this before each epoch.
    """

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(self.seed)
        for _ in range(epoch):
            torch.randperm(self.num_samples, generator=self.generator)


class PodiumTrainer(FastPathTrainer):
    def __init__(
        self,
        *,
        rows: Sequence[Row],
        rewards: Rewards,
        watch: GradingWatch,
        pass_threshold: float,
        tally: Tally,
        phases: PhaseTimer,
        on_rollouts: Callable[[RolloutsDone], None],
        watched: Sequence[WatchedField] = (),
        step_sampler: StepSampler | None = None,
        team: Team = ALONE,
        **trl_arguments: Any,
    ) -> None:
        """`rows`: what the data set's `row` column points into. `on_rollouts` gets each generation batch, scored.
        `step_sampler`: unset, a step's prompts are those that TRL's sampler has for it.

        Of the processes of `team` the first has the rewards, and grades and counts the rollouts of all.
        """
        self.team = team
        self._tally = tally
        self._batch_metrics: dict[str, float] = {}
        self._rows = rows
        self.rewards = rewards
        self._pass_threshold = pass_threshold
        self._phases = phases
        self._on_rollouts = on_rollouts
        self._watch = watch
        self._watched = Watch(watched)
        self._columns = [RewardColumn(name) for name in rewards.names]
        self._batch: RolloutBatch | None = None
        """What TRL makes its batch of, that of all processes; the first one's alone."""
        self._is_silent: list[bool] = []
        self._step_sampler = step_sampler
        self._drawn: Drawn | None = None
        """Generated and graded before TRL asks for it."""
        super().__init__(reward_funcs=list(self._columns), **trl_arguments)
        self.accelerator.backward = phases.timed(Phase.BACKWARD, self.accelerator.backward)
        self._sampler: ColocatedSampler | None = None

    def sample_with(self, sampler: ColocatedSampler) -> None:
        """Rollouts come from it: it takes the place of TRL's vLLM engine, which begins with the trainer."""
        self._sampler = sampler
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, sampler, -1
        if self._saves(Saving.CORRECTION):
            self.obstacles = obstacles(self)  # some are obstacles with vLLM only

    @property
    def facts(self) -> dict[str, Any]:
        """How it trained, for the results: JSON values."""
        return self.fast_path_facts | (self._sampler.facts if self._sampler is not None else {})

    # Rollouts and rewards.

    def _generate(self, prompts: list[Any]) -> Any:
        return super()._generate(prompts) if self._drawn is None else self._drawn.generation

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self._phases.phase(Phase.GENERATION):
            return super()._generate_single_turn(*args, **kwargs)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids: list[list[int]]
    ) -> torch.Tensor:
        """Grade every rollout once with all terms, then let TRL collect the numbers term by term."""
        with self._phases.phase(Phase.REWARD):
            drawn = [{"row": example["row"]} for example in inputs]
            everybodys = self.team.gather((drawn, completion_ids))
            values, self._is_silent = self.team.share(self._look_at(everybodys) if self.team.leads else None)
            for column in self._columns:
                column.values = values[column.__name__][self.team.own(len(inputs))]
            rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids)
            return rewards

    def _look_at(
        self, everybodys: list[tuple[list[dict[str, Any]], list[list[int]]]]
    ) -> tuple[dict[str, list[float | None]], list[bool]]:
        """The numbers of each term for all rollouts, and whether each group is silent.

        `everybodys`: examples and completions of each process.
        """
        inputs = [example for examples, _ in everybodys for example in examples]
        completion_ids = [ids for _, completions in everybodys for ids in completions]
        batch = self._batch = self._grade(inputs, completion_ids) if self._drawn is None else self._drawn.batch
        values = {name: [score.value(name) for score in batch.scored] for name in self.rewards.names}
        return values, [is_silent(rewards) for rewards in batch.group_rewards]

    def _grade(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]]) -> RolloutBatch:
        texts = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        answers = [
            Completion(self._rows[example["row"]], text, ids, is_truncated=not self._is_finished(ids))
            for example, text, ids in zip(inputs, texts, completion_ids, strict=True)
        ]
        return RolloutBatch(answers, self.rewards.score(answers, step=self.state.global_step), self.num_generations)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Raises `GradingUnreliable` where the rollouts are not to be trained on; they are in the journal then too."""
        if self._step_sampler is not None:
            return self._generate_and_score_draw(self._step_sampler, inputs)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        prompts = self._prompt_texts(output["prompt_ids"], output["prompt_mask"])
        told = self.team.gather((prompts, output["advantages"].tolist()))
        if self.team.leads:
            assert self._batch is not None
            advantages = [one for _, part in told for one in part]
            self._account_for(self._batch, [one for part, _ in told for one in part], advantages)
        return output

    def _generate_and_score_draw(self, sampler: StepSampler, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL makes its batch of the groups that are trained on; what is counted and recorded is all of them."""
        grade = self._phases.timed(Phase.REWARD, self._grade)
        draw = sampler.draw(inputs, step=self.state.global_step, generate=self._generate_ahead, grade=grade)
        self._drawn = draw.trained
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(self._drawn.inputs)
        finally:
            self._drawn = None
        batch = draw.everything.batch
        for name, value in trl_metrics(batch, self.rewards.names, self.reward_weights).items():
            self._metrics["train"][name] = [value]
        prompts = self.processing_class.batch_decode(draw.everything.generation.prompt_ids[:: self.num_generations])
        self._account_for(batch, prompts, draw.advantages(output["advantages"].tolist()))
        self._batch_metrics |= draw.metrics
        return output

    def _generate_ahead(self, inputs: list[dict[str, Any]]) -> Any:
        return super()._generate([example["prompt"] for example in inputs])

    def _account_for(self, batch: RolloutBatch, prompts: Sequence[str], advantages: Sequence[float | None]) -> None:
        """Journal, error rule, tally and metrics of all that was generated for a step."""
        step = self.state.global_step + 1
        self._on_rollouts(journal_entry(batch, step=step, prompts=prompts, advantages=advantages))
        self._watch.check(batch.scored, step=step)
        signal = find_signal(batch.group_rewards, self._pass_threshold)
        self._tally.add(batch, signal, advantages)
        self._batch_metrics = {
            **reward_metrics(batch.scored),
            **grader_metrics(batch.scored),
            **self._watched.metrics(batch.completions),
            **text_metrics([completion.text for completion in batch.completions], group_size=self.num_generations),
            **signal.metrics,
            **spread_metrics(batch),
            **length_metrics(batch),
            **(self._sampler.take_metrics() if self._sampler is not None else {}),
        }

    def _silent_groups(self) -> torch.Tensor:
        """By the rewards in the journal: what is called silent is what is left out."""
        return torch.tensor(self._is_silent)

    def take_batch_metrics(self) -> dict[str, float]:
        """What the step's generation batch adds to TRL's metrics; empty where a step reuses an older batch."""
        metrics, self._batch_metrics = self._batch_metrics, {}
        return metrics

    def _is_finished(self, token_ids: list[int]) -> bool:
        return token_ids[-1] in {*self.eos_token_ids, self.processing_class.pad_token_id}

    def _prompt_texts(self, ids: torch.Tensor, mask: torch.Tensor) -> list[str]:
        """The prompt of each group, special tokens included: what the model read."""
        firsts = slice(None, None, self.num_generations)
        kept = [row[keep.bool()] for row, keep in zip(ids[firsts], mask[firsts], strict=True)]
        texts: list[str] = self.processing_class.batch_decode(kept)
        return texts

    # The clock.

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        phase = Phase.FORWARD if torch.is_grad_enabled() else Phase.LOGPROBS_NO_GRAD
        with self._phases.phase(phase):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with self._phases.phase(Phase.FORWARD):
            before = self.gradient_tokens
            loss = super()._compute_loss(model, inputs)
            self._tally.trained_tokens += self.gradient_tokens - before
            return loss

    def _audit(self, *args: Any) -> None:
        with self._phases.phase(Phase.FORWARD):
            super()._audit(*args)

    def _clip_grad_norm(self, model: Any) -> Any:
        with self._phases.phase(Phase.OPTIMIZER):
            return super()._clip_grad_norm(model)

    # Resumption: what transformers and TRL leave out of a checkpoint, or load differently than it was.

    def _get_train_sampler(self, dataset: Any = None) -> EpochRepeatSampler:
        sampler = super()._get_train_sampler(dataset)
        return EpochRepeatSampler(
            sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
        )

    @property
    def buffer(self) -> RolloutBuffer:
        generate_every = self.args.steps_per_generation * self.num_iterations
        return RolloutBuffer(self._step, self._buffered_inputs if self._step % generate_every else None)

    @buffer.setter
    def buffer(self, buffer: RolloutBuffer) -> None:
        self._step, self._buffered_inputs = buffer

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with self._phases.phase(Phase.LOAD):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint) / _buffer_file(self.team.rank)
            saved = torch.load(path, map_location=self.args.device, weights_only=True)
            self.buffer = RolloutBuffer(saved["step"], saved["buffer"])

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """PEFT loads adapters in fp32, where TRL trains QLoRA's in bf16: put the types back before AdamW sees them."""
        types = {name: parameter.dtype for name, parameter in self.model.named_parameters()}
        with self._phases.phase(Phase.LOAD):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        for name, parameter in self.model.named_parameters():
            parameter.data = parameter.data.to(types[name])
