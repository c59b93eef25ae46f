"""Whatever way the policy gets into an engine, asleep or awake, what is served after a sync is what is trained."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from tests.unit.test_training_config import CPU
from tests.unit.vllm.test_weights import base_model, policy
from worker.training.failures import StaleSampler
from worker.training.phases import PhaseTimer
from worker.training.vllm.canary import Canary, Texts
from worker.training.vllm.native import AdapterFolder
from worker.training.vllm.sampler import Answers, ColocatedSampler, Serving
from worker.training.vllm.seeds import RequestSeeds
from worker.training.vllm.start import scorer

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]
ASKED = [PROMPTS[0], PROMPTS[0], PROMPTS[2]]


@dataclass
class ToyEngine:
    """A model of its own, and a vLLM engine's memory: adapters by number, weights that sleep at level 2 destroys."""

    forgets: bool = True
    model: Any = field(default_factory=base_model)
    is_asleep: bool = False
    pushed: list[set[str]] = field(default_factory=list)
    adapters: dict[int, PeftModel] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    is_fresh: bool = True
    """No prompt is cached that other weights computed."""
    loses_what_it_is_given: bool = False
    """And has the base again."""

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, all_of_them: bool) -> None:
        places = dict(self.model.named_parameters())
        self.pushed.append(set())
        with torch.no_grad():
            for name, weight in weights:
                places[name].copy_(weight)
                self.pushed[-1].add(name)
        assert not all_of_them or self.pushed[-1] == places.keys()
        self.is_fresh = False

    def serve_adapter(self, number: int, folder: Path) -> None:
        assert number not in self.adapters
        self.adapters[number] = PeftModel.from_pretrained(copy.deepcopy(self.model), folder)
        self.is_fresh = False

    def forget_cached_prompts(self) -> None:
        assert not self.is_asleep
        self.is_fresh = True

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], drawing: Mapping[str, Any]) -> Answers:
        self._require_awake()
        self.seeds += seeds
        return Answers([[seed % 40] for seed in seeds], [[-1.0] for _ in seeds])

    def complete(self, prompts: Texts, tokens: int) -> Texts:
        self._require_awake()
        return [[1 + (len(prompt) + place) % 39 for place in range(tokens)] for prompt in prompts]

    def score(self, texts: Texts) -> torch.Tensor:
        self._require_awake()
        served = self.adapters[max(self.adapters)] if self.adapters else self.model
        return scorer(served, CPU)(texts)

    def sleep(self) -> None:
        self._require_awake()
        self.is_asleep = True
        if self.forgets:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(torch.nan)

    def wake_weights(self) -> None:
        assert self.is_asleep

    def wake_cache(self) -> None:
        self.is_asleep = False
        if self.loses_what_it_is_given:
            self.model, self.adapters = base_model(), {}

    def _require_awake(self) -> None:
        assert not self.is_asleep
        assert self.is_fresh


@dataclass
class Bench:
    model: Any
    engine: ToyEngine
    sampler: ColocatedSampler
    steps: list[int]

    def learn(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.02)
        self.steps[0] += 1

    def train_a_step(self) -> float:
        """The canary's gap."""
        self.sampler.sync_weights()
        gap = self.sampler.take_metrics()["canary/logp_gap"]
        self.sample()
        self.learn()
        return gap

    def sample(self) -> list[list[int]]:
        return self.sampler.generate(ASKED, None, 1)[1]


def bench(folder: Path, way: str, *, sleeps: bool = False) -> Bench:
    model = base_model() if way == "full" else policy()
    engine = ToyEngine(forgets=way != "native")
    if sleeps:
        engine.sleep()
    serving = Serving(
        dtype=torch.float32,
        sleeps=sleeps,
        share=0.3,
        adapters=AdapterFolder(folder) if way == "native" else None,
        trains_everything=way == "full",
        has_the_base=way in ("native", "merged"),
        merges=None if way == "native" else "asked for",
    )
    score_base = None if way == "full" else scorer(model, CPU, with_adapter=False)
    steps = [0]
    sampler = ColocatedSampler(
        model,
        engine,
        serving,
        canary=Canary(PROMPTS, torch.float32, score_base=score_base),
        score=scorer(model, CPU),
        seeds=RequestSeeds(7),
        drawing={},
        step=lambda: steps[0],
        phases=PhaseTimer(),
    )
    return Bench(model, engine, sampler, steps)


@pytest.mark.parametrize("sleeps", [False, True], ids=["awake", "sleeps"])
@pytest.mark.parametrize("way", ["native", "merged", "four_bits", "full"])
def test_after_each_step_the_policy_is_served(tmp_path: Path, way: str, sleeps: bool) -> None:
    here = bench(tmp_path, way, sleeps=sleeps)
    for _ in range(3):
        assert here.train_a_step() < 1e-5
        assert here.engine.is_asleep is sleeps


@pytest.mark.parametrize(
    ("way", "sleeps", "whole"),
    [
        ("merged", False, [False, False, False]),
        ("merged", True, [True, True, True]),
        ("four_bits", False, [True, False, False]),
        ("full", False, [True, True, True]),
    ],
)
def test_every_weight_is_pushed_where_the_engine_lacks_it_and_else_what_the_adapter_changes(
    tmp_path: Path, way: str, sleeps: bool, whole: list[bool]
) -> None:
    here = bench(tmp_path, way, sleeps=sleeps)
    for _ in whole:
        here.train_a_step()
    names = set(dict(base_model().named_parameters()))
    assert [pushed == names for pushed in here.engine.pushed] == whole
    assert all(pushed == names or all("_proj" in name for name in pushed) for pushed in here.engine.pushed)


@pytest.mark.parametrize("way", ["native", "merged", "full"])
def test_an_engine_that_sleeps_serves_a_second_round_of_the_same_step(tmp_path: Path, way: str) -> None:
    here = bench(tmp_path, way, sleeps=True)
    here.train_a_step()
    here.sampler.sync_weights()
    first, second = here.sample(), here.sample()
    assert len(set(here.engine.seeds)) == len(here.engine.seeds) == 3 * len(ASKED)
    assert first != second


@pytest.mark.parametrize("way", ["native", "merged", "full"])
def test_a_second_hand_over_that_is_lost_is_found_before_a_token_is_sampled(tmp_path: Path, way: str) -> None:
    here = bench(tmp_path, way, sleeps=True)
    for _ in range(2):
        here.train_a_step()
    here.sampler.sync_weights()
    here.sample()
    asked = len(here.engine.seeds)
    here.engine.loses_what_it_is_given = True
    with pytest.raises(StaleSampler):
        here.sample()
    assert len(here.engine.seeds) == asked


def test_requests_have_the_seeds_of_their_prompts_and_the_answers_their_order(tmp_path: Path) -> None:
    here = bench(tmp_path, "merged")
    here.steps[0] = 4
    here.sampler.sync_weights()
    prompts, completions, logps, _ = here.sampler.generate(ASKED, None, 1)
    seeds = RequestSeeds(7).draw(4, ASKED)
    assert here.engine.seeds == seeds
    assert prompts == ASKED
    assert completions == [[seed % 40] for seed in seeds]
    assert logps == [[[-1.0]], [[-1.0]], [[-1.0]]]


def test_of_the_versions_of_an_adapter_only_the_newest_is_kept_on_disk(tmp_path: Path) -> None:
    here = bench(tmp_path / "adapters", "native")
    for _ in range(3):
        here.train_a_step()
    assert sorted(here.engine.adapters) == [1, 2, 3]
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == ["adapter-3"]


def test_the_results_say_how_the_policy_was_served(tmp_path: Path) -> None:
    assert bench(tmp_path, "native").sampler.facts == {"sampler": {"adapter": "native", "share": 0.3, "sleeps": False}}
    assert bench(tmp_path, "full", sleeps=True).sampler.facts == {
        "sampler": {"adapter": "merged: asked for", "share": 0.3, "sleeps": True}
    }
