"""One GPU for a trainer and an engine: who gets how much."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_training_config import GPU, spec
from tests.unit.vllm.test_weights import base_model, policy
from worker.training.failures import SamplerDoesNotFit
from worker.training.vllm.memory import (
    ENGINE_EXTRA,
    GIB,
    USABLE,
    Needs,
    estimate_needs,
    plan_memory,
    token_cache_bytes,
)

H100 = 80 * GIB
ONE_B7 = Needs(total=H100, resident=4 * GIB, passing=20 * GIB, weights=4 * GIB, longest=GIB // 16, all_rollouts=8 * GIB)
"""About Qwen3-1.7B with LoRA, 128 rollouts of 600 tokens."""


def with_(needs: Needs, **changes: float) -> Needs:
    values = {name: getattr(needs, name) for name in Needs.__slots__} | changes
    return Needs(**{name: int(value) for name, value in values.items()})


def test_an_engine_that_fits_beside_the_trainer_gets_what_it_can_use_and_stays_awake() -> None:
    plan = plan_memory(ONE_B7)
    assert not plan.sleeps
    assert plan.share * H100 == pytest.approx(4 * GIB + ENGINE_EXTRA + 8 * GIB, rel=0.01)


def test_a_small_cache_is_better_than_sleeping_as_long_as_it_holds_a_quarter_of_the_rollouts() -> None:
    plan = plan_memory(with_(ONE_B7, passing=USABLE * H100 - 4 * GIB - 6 * GIB - 2.5 * GIB))
    assert not plan.sleeps
    assert plan.share * H100 == pytest.approx(8.5 * GIB, rel=0.01)
    assert plan_memory(with_(ONE_B7, passing=USABLE * H100 - 4 * GIB - 6 * GIB - 1.5 * GIB)).sleeps


def test_an_engine_that_sleeps_may_use_what_the_trainers_passes_use() -> None:
    plan = plan_memory(with_(ONE_B7, passing=70 * GIB))
    assert plan.sleeps
    assert plan.share * H100 == pytest.approx(14 * GIB, rel=0.01)


def test_what_does_not_fit_in_turns_either_is_refused_with_the_figures() -> None:
    with pytest.raises(SamplerDoesNotFit, match=r"keeps 72\.0 GiB of 80\.0.*6\.1 GiB"):
        plan_memory(with_(ONE_B7, resident=72 * GIB))


def test_the_jobs_own_share_is_taken_and_decides_whether_there_is_room_beside() -> None:
    assert plan_memory(ONE_B7, share=0.5).share == 0.5
    assert not plan_memory(ONE_B7, share=0.5).sleeps
    assert plan_memory(ONE_B7, share=0.7).sleeps


@given(resident=st.floats(0.1, 70), passing=st.floats(0.1, 70), weights=st.floats(0.1, 60), cache=st.floats(0.01, 500))
def test_no_plan_promises_memory_twice(resident: float, passing: float, weights: float, cache: float) -> None:
    needs = with_(
        ONE_B7,
        resident=resident * GIB,
        passing=passing * GIB,
        weights=weights * GIB,
        longest=cache * GIB / 100,
        all_rollouts=cache * GIB,
    )
    try:
        plan = plan_memory(needs)
    except SamplerDoesNotFit:
        return
    beside = 0 if plan.sleeps else needs.passing
    assert plan.share * H100 + needs.resident + beside <= USABLE * H100 + 0.001 * H100
    assert plan.share * H100 >= needs.weights + ENGINE_EXTRA + needs.longest - 0.001 * H100


def test_the_cache_of_qwen3_8b_is_that_of_the_source_document() -> None:
    config = SimpleNamespace(num_hidden_layers=36, num_key_value_heads=8, num_attention_heads=32, head_dim=128)
    assert token_cache_bytes(config, 2) == 147_456


def test_needs_follow_the_model_and_the_job() -> None:
    wanted = spec(hyperparameters={"max_steps": 1, "prompts_per_step": 4, "num_generations": 8})
    lora, full = (
        estimate_needs(model, wanted, GPU, total=H100, tokens=100, evaluated=0) for model in (policy(), base_model())
    )
    parameters = sum(one.numel() for one in base_model().parameters())
    assert full.resident == parameters * 4 * 4
    assert parameters * 4 < lora.resident < full.resident
    assert full.weights == parameters * 2
    assert (full.longest, full.all_rollouts) == (100 * 2 * 2 * 16 * 2, 32 * 100 * 2 * 2 * 16 * 2)
    assert lora.passing == full.passing


def test_an_evaluation_that_keeps_more_than_the_passes_decides_what_the_trainer_needs() -> None:
    wanted = spec(hyperparameters={"max_steps": 1, "prompts_per_step": 4, "num_generations": 8})
    few, many, twice = (
        estimate_needs(base_model(), wanted, GPU, total=H100, tokens=100, evaluated=tokens).passing
        for tokens in (64 * 100, 10**8, 2 * 10**8)
    )
    assert few < many
    assert many >= 10**8 * token_cache_bytes(base_model().config, 2)
    assert twice == 2 * many
