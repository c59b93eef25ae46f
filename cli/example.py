"""The example that ships with Podium, as a job spec and as a script to paste."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.curl import ID_OF, Curl
from core.settings import CHECKOUT

EXAMPLE = CHECKOUT / "examples/biography"
TRAIN = EXAMPLE / "train.jsonl"
HELDOUT = EXAMPLE / "heldout.jsonl"
REWARD = EXAMPLE / "reward.py"
REWARD_NAME = "biography"


@dataclass(frozen=True, slots=True)
class Uploads:
    """The ids that the server gave to the example's three files."""

    training_file: str
    validation_file: str
    reward: str


def job_spec(uploads: Uploads) -> dict[str, Any]:
    """The example's `job.json`, completed with what was uploaded."""
    spec: dict[str, Any] = json.loads((EXAMPLE / "job.json").read_text())
    spec["training_file"] = uploads.training_file
    spec["validation_file"] = uploads.validation_file
    spec["method"]["grpo"]["rewards"] = [{"reward": uploads.reward}]
    return spec


def shell_script(curl: Curl) -> list[str]:
    """Lines for a POSIX shell that upload the example and submit it; curl and python3 are all they need."""
    submit = curl.submit(job_spec(Uploads("@train", "@heldout", "@reward")))
    for name in ("train", "heldout", "reward"):
        submit = submit.replace(f'"@{name}"', f"\"'${name}'\"")
    return [
        f"id() {{ {ID_OF}; }}",
        f"train=$({curl.upload_file(shown(TRAIN))} | id)",
        f"heldout=$({curl.upload_file(shown(HELDOUT))} | id)",
        f"reward=$({curl.upload_reward(shown(REWARD), name=REWARD_NAME)} | id)",
        submit,
    ]


def shown(path: Path) -> str:
    """Relative to where the user stands, when it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
