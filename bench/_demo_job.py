"""The demo job for benches: its uploads, and the wait for its end."""

import time
from pathlib import Path
from typing import Any

from cli.client import Client, JobView
from cli.example import HELDOUT, REWARD, REWARD_NAME, TRAIN, Uploads

POLL_S = 2.0
"""What asks for the status is no part of the service, and takes its cores too."""


def upload(client: Client, held_out: Path = HELDOUT, reward: Path = REWARD) -> Uploads:
    return Uploads(
        client.upload_file(TRAIN), client.upload_file(held_out), client.upload_reward(reward, name=REWARD_NAME)
    )


def run(client: Client, spec: dict[str, Any]) -> JobView:
    """The job once it has succeeded; ends the bench where it has not."""
    job = client.submit(spec)
    while not (job := client.job(job.id)).has_ended:
        time.sleep(POLL_S)
    if job.status != "succeeded":
        raise SystemExit(f"the job is {job.status}: {job.error}")
    return job


def quiet(_line: str) -> None:
    """For a stack whose words nobody reads."""
