"""The example job by the official `openai` client alone, in OpenAI's own `reinforcement` method.

    python examples/openai_client.py URL API_KEY [OUT_DIR]

Nothing but `base_url` and `api_key` differs from what one would write for the hosted service.
"""

import sys
import time
from pathlib import Path

from openai import OpenAI

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
    url, key = sys.argv[1:3]
    out = Path(sys.argv[3] if len(sys.argv) > 3 else "podium-openai")
    client = OpenAI(base_url=f"{url}/v1", api_key=key)

    with (BIOGRAPHY / "train.jsonl").open("rb") as train, (BIOGRAPHY / "heldout.jsonl").open("rb") as heldout:
        training_file = client.files.create(file=train, purpose="fine-tune")
        validation_file = client.files.create(file=heldout, purpose="fine-tune")
    print(training_file.id, training_file.bytes, "bytes", training_file.status)

    job = client.fine_tuning.jobs.create(
        model="podium/tiny",
        training_file=training_file.id,
        validation_file=validation_file.id,
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

    while (job := client.fine_tuning.jobs.retrieve(job.id)).finished_at is None:
        time.sleep(1)
    print(job.status, job.fine_tuned_model, job.trained_tokens, "tokens trained")

    events = list(client.fine_tuning.jobs.list_events(job.id, limit=50))
    for event in reversed(events):
        print(event.level, event.message)
    for checkpoint in client.fine_tuning.jobs.checkpoints.list(job.id):
        print(checkpoint.step_number, checkpoint.fine_tuned_model_checkpoint)

    out.mkdir(parents=True, exist_ok=True)
    for file_id in job.result_files:
        client.files.content(file_id).write_to_file(out / "results.json")
    print((out / "results.json").stat().st_size, "bytes of results.json")
    if job.status != "succeeded":
        raise SystemExit(f"the job {job.status}: {job.error}")


if __name__ == "__main__":
    main()
