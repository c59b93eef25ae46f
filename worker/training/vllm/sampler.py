"""What TRL's trainer asks for its rollouts, in place of TRL's `VLLMGeneration`: an engine that serves the policy.

TRL asks for `sync_weights` before the first generation of each optimizer step, and then for `generate`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from worker.training.vllm.canary import Canary, Scorer, Texts
from worker.training.vllm.native import AdapterFolder
from worker.training.vllm.seeds import RequestSeeds
from worker.training.vllm.weights import policy_weights

Generated = tuple[list[list[int]], list[list[int]], list[list[list[float | None]]], None]


class Server(Protocol):
    """`worker.training.vllm.engine.Engine`; vLLM is not imported to name it."""

    is_asleep: bool

    @property
    def forgets(self) -> bool: ...
    def load(self, weights: Any, *, all_of_them: bool) -> None: ...
    def serve_adapter(self, number: int, folder: Any) -> None: ...
    def forget_cached_prompts(self) -> None: ...
    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], drawing: dict[str, Any]) -> Any: ...
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
    pushes_all_at_first: bool
    """The engine did not load what the trainer trains on: every weight is trained, or the base is in 4 bits."""
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
        drawing: dict[str, Any],
        step: Callable[[], int],
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
        self._rows: Sequence[int] = ()
        self._pushed_all = not serving.pushes_all_at_first
        self._metrics: dict[str, float] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """For the results: JSON values."""
        serving = self._serving
        adapter = "native" if serving.merges is None else f"merged: {serving.merges}"
        return {"sampler": {"adapter": adapter, "share": serving.share, "sleeps": serving.sleeps}}

    def announce(self, rows: Sequence[int]) -> None:
        """Which rows the prompts of the next `generate` come from, in order: their seeds hang on it."""
        self._rows = rows

    def take_metrics(self) -> dict[str, float]:
        """Of the canary, since they were last taken."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def sync_weights(self) -> None:
        """The engine serves the present policy. Raises `StaleSampler` if it does not after all."""
        self._hand_over()
        self._metrics = self._canary.check(
            sampler=self._engine.score, trainer=self._score, complete=self._engine.complete, step=self._step()
        )

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None) -> Generated:
        """One completion for each prompt, of which TRL repeats every one `num_generations` times."""
        if self._engine.is_asleep:
            self._hand_over()
        seeds = self._seeds.draw(self._step(), self._rows)
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
            self._push(all_of_them=not self._pushed_all or (was_asleep and self._engine.forgets))
        if was_asleep:
            self._engine.wake_cache()
        self._engine.forget_cached_prompts()

    def _push(self, *, all_of_them: bool) -> None:
        weights = policy_weights(self._model, self._serving.dtype, adapted_only=not all_of_them)
        self._engine.load(weights, all_of_them=all_of_them)
        self._pushed_all = True
