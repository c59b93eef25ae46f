"""OpenAI's `reinforcement` method and our `grpo` one come to the same plan."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.jobs.methods import Method
from app.jobs.plan import Plan, plan_of
from core.spec import EvaluationSpec, Hyperparameters

GRADER = {"type": "python", "name": "exact", "source": "def grade(sample, item): return 1.0"}


def reinforcement(**hyperparameters: Any) -> Plan:
    body = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": hyperparameters}}
    return plan_of(Method.model_validate(body))


def refused(method: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        Method.model_validate(method)
    return [(".".join(map(str, fault["loc"])), fault["type"]) for fault in caught.value.errors()]


@pytest.mark.parametrize("value", ["auto", None])
def test_auto_and_null_mean_our_defaults(value: str | None) -> None:
    names = (
        "batch_size",
        "n_epochs",
        "learning_rate_multiplier",
        "compute_multiplier",
        "eval_interval",
        "eval_samples",
    )
    plan = reinforcement(**dict.fromkeys(names, value))
    assert plan.hyperparameters == Hyperparameters()
    assert plan.evaluation == EvaluationSpec()


def test_numbers_take_our_names() -> None:
    plan = reinforcement(batch_size=4, n_epochs=3, learning_rate_multiplier=5, eval_interval=10, eval_samples=2)
    assert plan.hyperparameters.prompts_per_step == 4
    assert plan.hyperparameters.n_epochs == 3
    assert plan.hyperparameters.learning_rate == pytest.approx(1e-4)
    assert plan.evaluation.every_steps == 10
    assert plan.evaluation.samples_per_task == 2


@pytest.mark.parametrize(("multiplier", "generations"), [(0.01, 2), (0.5, 4), (1.3, 10), (2, 16), (100, 64)])
def test_compute_buys_rollouts_within_bounds(multiplier: float, generations: int) -> None:
    assert reinforcement(compute_multiplier=multiplier).hyperparameters.num_generations == generations


def test_hyperparameters_may_be_null_as_in_the_openai_type() -> None:
    method = Method.model_validate(
        {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": None}}
    )
    assert plan_of(method).hyperparameters == Hyperparameters()


def test_a_wrong_number_is_reported_once_under_its_own_name() -> None:
    body = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": {"batch_size": "many"}}}
    assert refused(body) == [("reinforcement.hyperparameters.batch_size", "int_type")]


@pytest.mark.parametrize("kind", ["score_model", "label_model", "endpoint"])
def test_other_graders_are_refused_by_one_clear_error(kind: str) -> None:
    body = {"type": "reinforcement", "reinforcement": {"grader": {"type": kind, "name": "g", "graders": {}}}}
    assert refused(body) == [("reinforcement.grader", "grader_not_supported")]


@pytest.mark.parametrize("kind", ["supervised", "dpo"])
def test_other_methods_are_refused_by_one_clear_error(kind: str) -> None:
    assert refused({"type": kind, kind: {"hyperparameters": {}}}) == [("", "method_not_supported")]


@pytest.mark.parametrize("method", [{"type": "grpo"}, {"type": "grpo", "reinforcement": {"grader": GRADER}}])
def test_settings_must_stand_under_the_name_of_the_type(method: dict[str, Any]) -> None:
    assert refused(method) == [("", "method_incomplete")]


def test_a_bad_reward_is_not_also_an_empty_list() -> None:
    assert refused({"type": "grpo", "grpo": {"rewards": [{"reward": 7}]}}) == [("grpo.rewards.0.reward", "string_type")]
    assert refused({"type": "grpo", "grpo": {"rewards": []}}) == [("grpo.rewards", "no_rewards")]


@pytest.mark.parametrize(
    "method",
    [{"type": []}, {"type": {}}, [], "grpo", 7, {"type": "reinforcement", "reinforcement": {"grader": {"type": []}}}],
)
def test_nonsense_is_a_validation_error(method: Any) -> None:
    assert refused(method)


def test_a_setting_is_named_as_the_client_wrote_it() -> None:
    assert reinforcement().path("hyperparameters.prompts_per_step") == "method.reinforcement.hyperparameters.batch_size"
