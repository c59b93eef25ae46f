"""TRL's `GRPOTrainer` without the work that changes no gradient.

Every override calls its parent, or gives it less to do. Of TRL's formulas only two are here again: the correction that
a skipped pass would have computed (`correction`), and what its loss types divide by (`packing.weight`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from trl import GRPOTrainer

from worker.training.fast_path.audit import Gradients, aside, gradients_of, relative_error
from worker.training.fast_path.correction import Correction
from worker.training.fast_path.layout import Rollouts, lay_out
from worker.training.fast_path.repacking import Processes, Repacker, Saved, Slice, loss_mask
from worker.training.fast_path.scoring import costs_of, score
from worker.training.fast_path.sharing_out import of_all_processes
from worker.training.fast_path.support import Saving, obstacles

SWITCHED_OFF = "it is switched off"


class FastPathTrainer(GRPOTrainer):
    _buffered_inputs: list[Slice] | None
    """TRL's: the micro-batches of the generation batch at hand."""

    def __init__(self, *, fast_path: bool = True, audit_every: int | None = None, **trl_arguments: Any) -> None:
        """`audit_every`: optimizer steps between comparisons with TRL's own gradient; each costs two steps' passes."""
        super().__init__(**trl_arguments)
        self.obstacles = obstacles(self) if fast_path else dict.fromkeys(Saving, SWITCHED_OFF)
        """Why a saving is not made; the others are."""
        self.gradient_tokens = 0
        """Computed so far in forward passes that a gradient follows."""
        self._audit_every = audit_every if fast_path else None
        self._costs = costs_of(self.model) if self._saves(Saving.SHARED_PROMPTS) else None
        self._rewards: torch.Tensor | None = None
        self._uncorrected: Slice | None = None
        """The micro-batch at hand, whose correction waits for its log-probabilities."""
        self._is_aside = False
        """Passes are made to compare: they train nothing."""
        self._is_stock = False
        """They are made as TRL makes them."""

    @property
    def fast_path_facts(self) -> dict[str, Any]:
        """What of it is on, and what is not and why: JSON values for the results."""
        found = {saving.value: self.obstacles.get(saving, "on") for saving in Saving}
        return {"fast_path": found}

    def _saves(self, saving: Saving) -> bool:
        return saving not in self.obstacles

    # Groups without a signal.

    def _calculate_rewards(self, *arguments: Any) -> torch.Tensor:
        self._rewards = super()._calculate_rewards(*arguments)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self._without_a_pass_for_the_correction():
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.model.training and self._saves(Saving.EQUAL_REWARDS):
            is_silent = self._silent_groups().to(output["advantages"].device)
            before = self.accelerator.process_index * len(inputs)
            ours = is_silent.repeat_interleave(self.num_generations)[before : before + len(inputs)]
            output["advantages"][ours] = 0.0
        return output

    def _silent_groups(self) -> torch.Tensor:
        """(groups,): whether all rewards of a group are equal, to the bit."""
        assert self._rewards is not None
        weighted = self._rewards * self.reward_weights.to(self._rewards.device)
        groups = weighted.nansum(dim=1).view(-1, self.num_generations)
        is_graded = ~self._rewards.isnan().all(dim=1).view_as(groups)
        highest = groups.masked_fill(~is_graded, -math.inf).amax(dim=1)
        lowest = groups.masked_fill(~is_graded, math.inf).amin(dim=1)
        is_silent: torch.Tensor = highest <= lowest
        return is_silent

    # Micro-batches of what teaches something.

    def _prepare_inputs(self, generation_batch: Any) -> Slice:
        generates = self._step % (self.args.steps_per_generation * self.num_iterations) == 0
        is_new = self.model.training and (generates or self._buffered_inputs is None)
        inputs: Slice = super()._prepare_inputs(generation_batch)
        if not is_new or (self._costs is None and not self._saves(Saving.SILENT_ROLLOUTS)):
            return inputs
        stock = self._buffered_inputs
        assert stock is not None
        packed, saved = self._repacker().repack(stock)
        self._buffered_inputs = packed
        self._report(saved.of_all(self.accelerator))
        if self._audit_is_due():
            self._audit(stock, packed)
        now: int = self._step % self.args.steps_per_generation
        return packed[now]

    def _repacker(self) -> Repacker:
        return Repacker(
            loss_type=self.loss_type,
            window=math.gcd(self.args.steps_per_generation, self.args.gradient_accumulation_steps),
            dtype=self.model.dtype,
            costs=self._costs,
            leaves_out=self._saves(Saving.SILENT_ROLLOUTS),
            processes=self._processes,
            is_whole_step=self.args.steps_per_generation % self.args.gradient_accumulation_steps == 0,
        )

    @property
    def _processes(self) -> Processes:
        accelerator = self.accelerator
        of_all = partial(of_all_processes, accelerator)
        return Processes(accelerator.process_index, accelerator.num_processes, of_all)

    def _compute_loss(self, model: Any, inputs: Slice) -> torch.Tensor:
        if not len(inputs["advantages"]):
            return self._no_loss()
        if self.use_vllm and self.vllm_importance_sampling_correction and "importance_sampling_ratio" not in inputs:
            inputs = self._uncorrected = dict(inputs)
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
        finally:
            self._uncorrected = None
        return loss

    def _no_loss(self) -> torch.Tensor:
        """Gradients are 0 then, as TRL's would be, and not absent: the optimizer goes on by its moments."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return torch.zeros((), device=self.accelerator.device, requires_grad=True)

    # Passes.

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **wanted: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        stock = super()._get_per_token_logps_and_entropies
        aux_loss = None
        if self._costs is None or self._is_stock:
            self._count_tokens(int(attention_mask.sum()))
            logps, entropies, aux_loss = stock(model, input_ids, attention_mask, logits_to_keep, batch_size, **wanted)
        else:
            parts = Rollouts(input_ids, attention_mask, logits_to_keep).chunks(batch_size)
            scored = [self._score(model, part, stock, wanted) for part in parts]
            logps, entropies = torch.cat([one for one, _ in scored]), _joined([entropy for _, entropy in scored])
        if self._uncorrected is not None:
            self._correct(self._uncorrected, logps.detach())
        return logps, entropies, aux_loss

    def _score(
        self, model: Any, rollouts: Rollouts, stock: Callable[..., Any], wanted: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self._costs is not None
        layout = lay_out(rollouts, self._costs, self.args.per_device_train_batch_size)
        if layout is None:
            logps, entropies, _ = stock(model, rollouts.ids, rollouts.mask, rollouts.completion_width, **wanted)
            return logps, entropies
        self._count_tokens(sum(tree.tokens for tree in layout.trees))
        with self.accelerator.autocast():
            return score(model, layout, rows=len(rollouts.ids), completion_width=rollouts.completion_width)

    def _count_tokens(self, tokens: int) -> None:
        if torch.is_grad_enabled() and not self._is_aside:
            self.gradient_tokens += tokens

    # The correction of vLLM's samples.

    @property
    def _correction(self) -> Correction:
        return Correction(
            self.vllm_importance_sampling_mode,
            self.vllm_importance_sampling_clip_min,
            self.vllm_importance_sampling_clip_max,
        )

    @property
    def _drops_a_pass(self) -> bool:
        """Whether TRL would compute old log-probabilities for the correction alone: no optimizer step comes between."""
        generate_every = self.args.steps_per_generation * self.num_iterations
        is_aligned = self.args.gradient_accumulation_steps % generate_every == 0
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        return bool(corrects and is_aligned and self._saves(Saving.CORRECTION))

    @contextmanager
    def _without_a_pass_for_the_correction(self) -> Iterator[None]:
        """Without the correction TRL makes no pass, and still hands on what vLLM said."""
        if not (self.model.training and self._drops_a_pass):
            yield
            return
        self.vllm_importance_sampling_correction = False
        try:
            yield
        finally:
            self.vllm_importance_sampling_correction = True

    def _correct(self, inputs: Slice, logps: torch.Tensor) -> None:
        """Before the first step on a batch the policy is the one that generated: its own log-probabilities are old.

        Means are of this process alone; vLLM with several is refused at submit (`needs_one_gpu`).
        """
        sampled, mask = inputs["sampling_per_token_logps"], loss_mask(inputs)
        ratio = inputs["importance_sampling_ratio"] = self._correction.ratio(logps, sampled, mask)
        for name, value in self._correction.metrics(ratio, logps, sampled, mask).items():
            self._metrics["train"][name].append(value)

    # What it saves, and whether it is right.

    def _report(self, saved: Saved) -> None:
        metrics = self._metrics["train"]
        metrics["fast/rollouts_skipped"].append(saved.rollouts)
        metrics["fast/tokens_skipped"].append(saved.tokens)
        if self._costs is not None:
            backward = 1 if any(not one.requires_grad for one in self.model.parameters()) else 2
            passes = 1 + backward + self.args.gradient_checkpointing
            left = saved.left * passes / (passes + self._drops_a_pass)
            metrics["fast/operations_saved"].append(1 - left)

    def _audit_is_due(self) -> bool:
        if not self._audit_every:
            return False
        micro_steps = self.args.steps_per_generation * self.num_iterations
        steps = max(1, micro_steps // self.args.gradient_accumulation_steps)
        return bool(-self.state.global_step % self._audit_every < steps)

    def _audit(self, stock: Sequence[Slice], fast: Sequence[Slice]) -> None:
        """Compare the gradients of all micro-batches of one generation, computed in both ways by the same weights."""
        with aside(self):
            self._is_aside = True
            try:
                ours = self._sum(gradients_of(self.model, lambda: self._accumulate(fast)))
                self._is_stock = True
                theirs = self._sum(gradients_of(self.model, lambda: self._accumulate(map(self._as_trl, stock))))
            finally:
                self._is_aside = self._is_stock = False
        self._metrics["train"]["fast/grad_relative_error"].append(relative_error(ours, theirs))

    def _sum(self, gradients: Gradients) -> Gradients:
        """Over the processes, which compute other rollouts in one way than in the other."""
        return [None if one is None else self.accelerator.reduce(one, reduction="sum") for one in gradients]

    def _as_trl(self, part: Slice) -> Slice:
        """A micro-batch with what TRL's pass for the correction would have said, where there was none."""
        if not self._drops_a_pass:
            return part
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
        mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
        with torch.no_grad():
            old, _, _ = super()._get_per_token_logps_and_entropies(
                self.model, ids, mask, part["completion_ids"].size(1), self.args.per_device_train_batch_size
            )
        ratio = self._correction.ratio(old, part["sampling_per_token_logps"], loss_mask(part))
        return {**part, "old_per_token_logps": old, "importance_sampling_ratio": ratio}

    def _accumulate(self, parts: Iterable[Slice]) -> None:
        for part in parts:
            self.accelerator.backward(FastPathTrainer._compute_loss(self, self.model, part))


def _joined(entropies: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    known = [entropy for entropy in entropies if entropy is not None]
    return torch.cat(known) if len(known) == len(entropies) else None
