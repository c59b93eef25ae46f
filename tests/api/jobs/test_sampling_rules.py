"""Hyperparameters that do not go together are refused by name, and a good job keeps what it asked for."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.jobs.test_job_validation import NUMBERS, Body, refusal, with_change

DYNAMIC: Body = {"dynamic_sampling": {}}
PROMPTS: Body = {"prompt_sampling": {}}


@pytest.mark.parametrize(
    ("numbers", "problems"),
    [
        (DYNAMIC | {"beta": 0.01}, [("dynamic_sampling", "kl_needs_every_group")]),
        (PROMPTS | {"n_epochs": 2}, [("prompt_sampling", "no_epochs")]),
        (DYNAMIC | {"prompts_per_step": 20}, [("dynamic_sampling", "no_further_prompts")]),
        (PROMPTS | {"prompts_per_step": 20}, [("prompt_sampling", "no_further_prompts")]),
        ({"use_vllm": True, "top_p": 0.95}, [("top_p", "top_p_biases_correction")]),
        ({"loss_type": "cispo", "epsilon_high": 0.2}, [("epsilon_high", "cispo_cuts_every_ratio")]),
        (
            DYNAMIC | PROMPTS | {"prompts_per_step": 20, "beta": 1, "n_epochs": 1},
            [
                ("dynamic_sampling", "kl_needs_every_group"),
                ("prompt_sampling", "no_epochs"),
                ("dynamic_sampling", "no_further_prompts"),
                ("prompt_sampling", "no_further_prompts"),
            ],
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    client: TestClient, body: Body, numbers: Body, problems: list[tuple[str, str]]
) -> None:
    error = refusal(client, with_change(body, NUMBERS, numbers))
    found = [(problem["field"], problem["code"]) for problem in error["errors"]]
    assert found == [(f"{NUMBERS}.{field}", code) for field, code in problems]


@pytest.mark.parametrize(
    "numbers",
    [
        DYNAMIC | PROMPTS | {"prompts_per_step": 19},
        PROMPTS | {"beta": 0.01, "max_steps": 5},
        DYNAMIC | {"n_epochs": 2, "fast_path": False, "num_iterations": 2},
        {"prompts_per_step": 20, "beta": 0.01},
        {"use_vllm": True, "top_p": 1.0, "temperature": 0.7},
        {"top_p": 0.95},
        {"loss_type": "cispo"},
        {"loss_type": "cispo", "epsilon_high": 4.0},
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ],
)
def test_the_rest_goes_together(submit: Callable[..., Body], body: Body, numbers: Body) -> None:
    submit(**with_change(body, NUMBERS, numbers))


def test_the_spec_says_what_was_chosen(submit: Callable[..., Body], body: Body) -> None:
    numbers: dict[str, Any] = {"dynamic_sampling": {"max_extra_batches": 3}, "prompt_sampling": {"floor": 0.2}}
    spec = submit(**with_change(body, NUMBERS, numbers))["spec"]
    assert spec["hyperparameters"]["dynamic_sampling"] == {"max_extra_batches": 3}
    assert spec["hyperparameters"]["prompt_sampling"] == {"floor": 0.2, "window": 4}
