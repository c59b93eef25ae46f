"""What clients send for a number is a number."""

import pytest
from pydantic import ValidationError

from app.jobs.methods import ReinforcementHyperparameters
from app.jobs.schemas import Resources
from app.jobs.terms import UploadedTerm
from core.spec import AdapterSpec, EvaluationSpec, Exact, Gate, Hyperparameters

NO_NUMBERS: list[tuple[type, str, object]] = [
    (Hyperparameters, "max_steps", True),
    (Hyperparameters, "max_steps", "8"),
    (Hyperparameters, "num_generations", True),
    (Hyperparameters, "learning_rate", "0.1"),
    (Hyperparameters, "beta", False),
    (AdapterSpec, "r", "16"),
    (EvaluationSpec, "pass_threshold", True),
    (Gate, "at_least", "1"),
    (Resources, "gpus", True),
    (ReinforcementHyperparameters, "batch_size", "8"),
    (ReinforcementHyperparameters, "compute_multiplier", True),
    (UploadedTerm, "weight", True),
    (UploadedTerm, "weight", "1"),
    (UploadedTerm, "version", True),
]


@pytest.mark.parametrize(("model", "field", "value"), NO_NUMBERS)
def test_booleans_and_texts_are_no_numbers(model: type[Exact], field: str, value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate({"reward": "rew-a"} | {field: value} if model in {Gate, UploadedTerm} else {field: value})
    (error,) = raised.value.errors()
    assert (error["loc"], error["type"]) in [((field,), "int_type"), ((field,), "float_type")]


def test_whole_floats_nulls_and_words_still_pass() -> None:
    assert Hyperparameters.model_validate({"num_generations": 8.0, "max_steps": None, "beta": 1}).num_generations == 8
    assert Hyperparameters.model_validate({"mask_truncated_completions": True}).mask_truncated_completions
    assert AdapterSpec.model_validate({"target_modules": "all-linear"}).target_modules == "all-linear"
    assert ReinforcementHyperparameters.model_validate({"batch_size": "auto", "n_epochs": 2}).batch_size == "auto"


def test_what_was_stored_parses_again() -> None:
    stored = Hyperparameters(max_steps=8, learning_rate=1.0, audit_every=0)
    assert Hyperparameters.model_validate_json(stored.model_dump_json()) == stored
