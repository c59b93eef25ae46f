"""Any value in any place of a body: refused or taken, never a 500."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

JOBS = "/v1/fine_tuning/jobs"
PYTHON_GRADER = {
    "type": "python",
    "name": "g",
    "source": "def grade(sample, item):\n    return 1.0\n",
    "image_tag": "x",
}

Body = dict[str, Any]

ODD_VALUES: list[Any] = [None, True, 0, -1, 2**62, 1e308, "", "x" * 3000, "é😀", [], [[]], [None], {}, {"type": []}]


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a body, the inner ones too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths_of(item, (*path, key))


@pytest.mark.parametrize("method", ["grpo", "reinforcement"])
def test_no_value_in_any_place_breaks_the_server(client: TestClient, body: Body, method: str) -> None:
    """The client of these tests raises what the server does not answer."""
    if method == "grpo":
        settings = body["method"]["grpo"]
        settings["rewards"][0] |= {"version": 1, "name": "n", "weight": 1.0}
        settings |= {"hyperparameters": {"max_steps": 3, "rollouts_per_pass": 8}, "adapter": {"target_modules": ["q"]}}
        settings |= {"evaluation": {"every_steps": 1}, "checkpoints": {}, "chat_template_kwargs": {"thinking": False}}
    else:
        settings = {"grader": PYTHON_GRADER, "hyperparameters": {"batch_size": 2, "compute_multiplier": 1.5}}
        body |= {"method": {"type": "reinforcement", "reinforcement": settings}}
    body |= {"suffix": "s", "seed": 1, "metadata": {"a": "b"}}
    body |= {"integrations": [{"type": "wandb", "wandb": {"project": "p", "tags": ["t"]}}, {"type": "tensorboard"}]}
    for path in paths_of(body):
        for odd in ODD_VALUES:
            changed = copy.deepcopy(body)
            inner: Any = changed
            for part in path[:-1]:
                inner = inner[part]
            inner[path[-1]] = odd
            response = client.post(JOBS, params={"dry_run": True}, json=changed)
            assert response.status_code in {200, 404, 422}, (path, odd, response.text)
            assert response.status_code == 200 or response.json()["error"]["fix"], (path, odd, response.text)
