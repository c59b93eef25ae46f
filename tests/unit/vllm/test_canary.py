"""When a sampler is called stale: it serves an older policy, or garbage; and when it is not."""

import pytest
import torch

from worker.training.failures import StaleSampler
from worker.training.vllm.canary import LIMITS, REMEMBERED, TEXTS, Canary, Known, Texts, read, require_present

TOKENS = 400
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 0.03}


def noise(size: float, seed: int) -> torch.Tensor:
    return size * torch.randn(TOKENS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BASE = noise(1.0, seed=0) - 3


@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize("moved", [0.0, 1e-6, 1e-3, 0.05, 1.0])
def test_rounding_is_never_called_stale(dtype: torch.dtype, moved: float) -> None:
    """However far the policy has moved. Fifty samplers, each off by its own rounding."""
    for seed in range(1, 51):
        now = BASE + noise(moved, seed=100 + seed)
        reading = read(now + noise(ROUNDING[dtype], seed=seed), now, [Known("the base", BASE)], dtype)
        require_present(reading, dtype, step=3)


@pytest.mark.parametrize(("dtype", "moved"), [(torch.float32, 5e-4), (torch.bfloat16, 0.1), (torch.bfloat16, 1.0)])
def test_a_sampler_that_kept_the_base_is_stale_long_before_it_is_far_away(dtype: torch.dtype, moved: float) -> None:
    for seed in range(1, 51):
        now = BASE + noise(moved, seed=100 + seed)
        reading = read(BASE + noise(ROUNDING[dtype], seed=seed), now, [Known("the base model", BASE)], dtype)
        assert reading.stale == "the base model"
        with pytest.raises(StaleSampler, match="before step 4 the sampler serves the base model"):
            require_present(reading, dtype, step=3)


def test_it_says_which_policy_is_served() -> None:
    older = [Known(f"the policy after step {step}", BASE + step * noise(0.2, seed=9)) for step in range(5)]
    now = BASE + 5 * noise(0.2, seed=9)
    served = older[2].logps + noise(0.01, seed=4)
    assert read(served, now, older, torch.bfloat16).stale == "the policy after step 2"


def test_an_adapter_that_is_still_zero_is_the_base_and_gives_no_verdict() -> None:
    reading = read(BASE + noise(1e-5, seed=1), BASE, [Known("the base model", BASE)], torch.float32)
    assert (reading.stale, reading.excess) == (None, 0.0)


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_garbage_is_far_away_from_everything(dtype: torch.dtype) -> None:
    reading = read(noise(1.0, seed=8) - 3, BASE, [], dtype)
    with pytest.raises(StaleSampler, match="nats per token"):
        require_present(reading, dtype, step=0)


def test_a_sampler_that_answers_nan_is_not_trusted() -> None:
    reading = read(torch.full((TOKENS,), torch.nan, dtype=torch.float64), BASE, [Known("x", BASE + 1)], torch.float32)
    with pytest.raises(StaleSampler):
        require_present(reading, torch.float32, step=0)


class Policies:
    """Trainer and sampler as functions of texts: log-probabilities by token and version."""

    def __init__(self) -> None:
        self.trained = self.served = 0
        self.completions = 0

    def score(self, version: int, texts: Texts) -> torch.Tensor:
        tokens = [token for text in texts for token in text[1:]]
        return torch.tensor([-1 - ((token * 7 + version * 3) % 11) / 10 for token in tokens], dtype=torch.float64)

    def complete(self, prompts: Texts, tokens: int) -> Texts:
        self.completions += 1
        return [list(range(tokens)) for _ in prompts]

    def check(self, canary: Canary, step: int) -> dict[str, float]:
        return canary.check(
            sampler=lambda texts: self.score(self.served, texts),
            trainer=lambda texts: self.score(self.trained, texts),
            complete=self.complete,
            step=step,
        )


def canary_of(policies: Policies) -> Canary:
    prompts = [[1, 2, 3], [1, 2, 3], [4, 5], *([number, 6] for number in range(10))]
    return Canary(prompts, torch.float32, score_base=lambda texts: policies.score(0, texts))


def test_a_sync_that_reached_the_sampler_is_measured_and_lets_the_run_go_on() -> None:
    policies = Policies()
    canary = canary_of(policies)
    for step in range(5):
        policies.trained = policies.served = step
        metrics = policies.check(canary, step)
        assert metrics["canary/logp_gap"] == 0
        assert metrics["canary/stale_excess"] <= 0
    assert policies.completions == 1


def test_a_sync_that_was_lost_stops_the_run_at_once() -> None:
    policies = Policies()
    canary = canary_of(policies)
    policies.check(canary, 0)
    policies.trained = policies.served = 1
    policies.check(canary, 1)
    policies.trained = 2
    with pytest.raises(StaleSampler, match="the policy after step 1"):
        policies.check(canary, 2)


def test_a_step_that_is_checked_twice_is_one_policy_of_the_history() -> None:
    policies = Policies()
    canary = canary_of(policies)
    for step in range(REMEMBERED):
        policies.trained = policies.served = step
        first, again = policies.check(canary, step), policies.check(canary, step)
        assert first == again
    policies.trained, policies.served = REMEMBERED, 1
    with pytest.raises(StaleSampler, match="the policy after step 1 "):
        policies.check(canary, REMEMBERED)


def test_after_a_resume_a_sampler_with_the_base_alone_is_seen_at_the_first_sync() -> None:
    policies = Policies()
    policies.trained = 40
    with pytest.raises(StaleSampler, match="the base model"):
        policies.check(canary_of(policies), 40)


def test_a_few_distinct_prompts_are_enough() -> None:
    policies = Policies()
    seen: list[Texts] = []
    canary_of(policies).check(
        sampler=lambda texts: seen.append(texts) or policies.score(0, texts),
        trainer=lambda texts: policies.score(0, texts),
        complete=policies.complete,
        step=0,
    )
    (texts,) = seen
    assert len(texts) == len({tuple(text) for text in texts}) == TEXTS
