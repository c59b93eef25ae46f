"""What TRL's trainer asks for its rollouts, in place of TRL's `VLLMGeneration`: an engine that serves the policy.

TRL asks for `sync_weights` before the first generation of each optimizer step, and then for `generate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from worker.training.phases import Phase, PhaseTimer
from worker.training.vllm.canary import Canary, Scorer, Texts
from worker.training.vllm.native import AdapterFolder
from worker.training.vllm.seeds import RequestSeeds
from worker.training.vllm.weights import policy_weights

Generated = tuple[list[list[int]], list[list[int]], list[list[list[float | None]]], None]
"""As `VLLMGeneration.generate`: prompts, completions, log-probabilities (completions, tokens, 1), and of no others."""


@dataclass(frozen=True, slots=True)
class Answers:
    token_ids: list[list[int]]
    logps: list[list[float | None]]
    """Of each token as it was drawn: temperature and top_p applied. None where vLLM computed NaN."""


class Server(Protocol):
    """`worker.training.vllm.engine.Engine`; vLLM is not imported to name it."""

    is_asleep: bool

    @property
    def forgets(self) -> bool: ...
    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, all_of_them: bool) -> None: ...
    def serve_adapter(self, number: int, folder: Path) -> None: ...
    def forget_cached_prompts(self) -> None: ...
    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], drawing: Mapping[str, Any]) -> Answers: ...
    def complete(self, prompts: Texts, tokens: int) -> Texts: ...
    def score(self, texts: Texts) -> torch.Tensor: ...
    def sleep(self) -> None: ...
    def wake_weights(self) -> None: ...
    def wake_cache(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Serving:
    """How the engine gets the policy."""

    dtype: torch.dtype
    sleeps: bool
    share: float | None
    """Of the GPU's memory."""
    adapters: AdapterFolder | None
    """Where they are published; None: merged weights are pushed."""
    trains_everything: bool
    """There is no adapter: each push is of every weight."""
    has_the_base: bool
    """What the engine loaded is what the adapter is trained on: not so where the trainer's base is in 4 bits."""
    merges: str | None
    """Why there is no native adapter; None where there is one."""


class ColocatedSampler:
    def __init__(
        self,
        model: Any,
        engine: Server,
        serving: Serving,
        *,
        canary: Canary,
        score: Scorer,
        seeds: RequestSeeds,
        drawing: Mapping[str, Any],
        step: Callable[[], int],
        phases: PhaseTimer,
    ) -> None:
        """`score`: the trainer's. `drawing`: how completions are drawn. `step`: optimizer steps that are done."""
        self._model = model
        self._engine = engine
        self._serving = serving
        self._canary = canary
        self._score = score
        self._seeds = seeds
        self._drawing = drawing
        self._step = step
        self._phases = phases
        self._has_the_base = serving.has_the_base
        self._metrics: dict[str, float] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """For the results: JSON values."""
        serving = self._serving
        adapter = "native" if serving.merges is None else f"merged: {serving.merges}"
        return {"sampler": {"adapter": adapter, "share": serving.share, "sleeps": serving.sleeps}}

    def take_metrics(self) -> dict[str, float]:
        """Of the canary since they were last taken: the worst of its readings."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def sync_weights(self) -> None:
        """The engine serves the present policy. Raises `StaleSampler` if it does not after all."""
        with self._phases.phase(Phase.WEIGHT_SYNC):
            self._hand_over()
            found = self._canary.check(
                sampler=self._engine.score, trainer=self._score, complete=self._engine.complete, step=self._step()
            )
        self._metrics = {name: max(value, self._metrics.get(name, value)) for name, value in found.items()}

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Generated:
        """One completion for each prompt, of which TRL repeats every one `num_generations` times.

        An engine that went to sleep after a first round of the step gets the policy again, and is checked again.
        """
        if self._engine.is_asleep:
            self.sync_weights()
        seeds = self._seeds.draw(self._step(), prompts)
        answers = self._engine.sample(prompts, seeds, self._drawing)
        if self._serving.sleeps:
            self._engine.sleep()
        logps = [[[logp] for logp in completion] for completion in answers.logps]
        return prompts, answers.token_ids, logps, None

    def _hand_over(self) -> None:
        was_asleep = self._engine.is_asleep
        if was_asleep:
            self._engine.wake_weights()
        if self._serving.adapters is not None:
            self._engine.serve_adapter(*self._serving.adapters.publish(self._model))
        else:
            self._push(lost_all=was_asleep and self._engine.forgets)
        if was_asleep:
            self._engine.wake_cache()
        self._engine.forget_cached_prompts()

    def _push(self, *, lost_all: bool) -> None:
        all_of_them = self._serving.trains_everything or lost_all or not self._has_the_base
        weights = policy_weights(self._model, self._serving.dtype, adapted_only=not all_of_them)
        self._engine.load(weights, all_of_them=all_of_them)
        self._has_the_base = True
