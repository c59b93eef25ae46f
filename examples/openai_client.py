"""The example job by the official `openai` client alone, in OpenAI's own `reinforcement` method.

    python examples/openai_client.py URL API_KEY [OUT_DIR] [ROWS]

Nothing but `base_url` and `api_key` differs from what one would write for the hosted service. ROWS takes only the
first rows of the training data, for a quick look.
"""

import argparse
import time
from pathlib import Path

from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

BIOGRAPHY = Path(__file__).resolve().parent / "biography"
GRADER = '''
import json

def grade(sample, item):
    """The share of the five fields that are right."""
    try:
        answer = json.loads(sample["output_text"])
    except ValueError:
        return 0.0
    gold = item["record"]
    if not isinstance(answer, dict) or answer.keys() != gold.keys():
        return 0.0
    return sum(answer[field] == value for field, value in gold.items()) / len(gold)
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("api_key")
    parser.add_argument("out", type=Path, nargs="?", default=Path("podium-openai"))
    parser.add_argument("rows", type=int, nargs="?")
    arguments = parser.parse_args()
    client = OpenAI(base_url=f"{arguments.url}/v1", api_key=arguments.api_key)
    job = submit(client, arguments.rows)
    job = follow(client, job)
    download(client, job, arguments.out)
    if job.status != "succeeded":
        raise SystemExit(f"the job {job.status}: {job.error}")


def submit(client: OpenAI, rows: int | None) -> FineTuningJob:
    lines = (BIOGRAPHY / "train.jsonl").read_bytes().splitlines(keepends=True)
    train = client.files.create(file=("train.jsonl", b"".join(lines[:rows])), purpose="fine-tune")
    heldout = client.files.create(file=BIOGRAPHY / "heldout.jsonl", purpose="fine-tune")
    print(train.id, train.bytes, "bytes", train.status)
    job = client.fine_tuning.jobs.create(
        model="podium/tiny",
        training_file=train.id,
        validation_file=heldout.id,
        seed=42,
        metadata={"made_by": "examples/openai_client.py"},
        method={
            "type": "reinforcement",
            "reinforcement": {
                "grader": {"type": "python", "name": "fields", "source": GRADER},
                "hyperparameters": {
                    "batch_size": 8,
                    "n_epochs": 1,
                    "learning_rate_multiplier": 50,
                    "eval_interval": 50,
                },
            },
        },
    )
    print(job.id, job.status, job.model)
    return job


def follow(client: OpenAI, job: FineTuningJob) -> FineTuningJob:
    while job.finished_at is None:
        time.sleep(1)
        job = client.fine_tuning.jobs.retrieve(job.id)
    print(job.status, job.fine_tuned_model, job.trained_tokens, "tokens trained")
    for event in reversed(list(client.fine_tuning.jobs.list_events(job.id, limit=50))):
        print(event.level, event.message)
    for checkpoint in client.fine_tuning.jobs.checkpoints.list(job.id):
        print("checkpoint", checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint)
    return job


def download(client: OpenAI, job: FineTuningJob, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file_id in job.result_files:
        client.files.content(file_id).write_to_file(out / "results.json")
        print((out / "results.json").stat().st_size, "bytes of results.json")


if __name__ == "__main__":
    main()
