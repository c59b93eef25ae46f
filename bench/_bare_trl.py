"""The demo job as a plain TRL script, as anybody would write it: nothing of Podium's but the model, data and reward.

    python -m bench._bare_trl STEPS OUTPUT_DIR

Prints the seconds that `trainer.train()` took, as the last line.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from core.settings import BUNDLED_MODEL, CHECKOUT, Settings
from examples.biography.reward import reward as score

EXAMPLE = CHECKOUT / "examples/biography"


def main() -> None:
    steps, output = int(sys.argv[1]), Path(sys.argv[2])
    job = json.loads((EXAMPLE / "job.json").read_text())
    trainer = GRPOTrainer(
        model=str(Settings().models[BUNDLED_MODEL]),
        reward_funcs=reward_function,
        args=_config(job, steps, output),
        train_dataset=Dataset.from_list(_rows()),
        peft_config=LoraConfig(
            r=job["method"]["grpo"]["adapter"]["r"],
            lora_alpha=job["method"]["grpo"]["adapter"]["alpha"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    started_at = time.perf_counter()
    trainer.train()
    print(time.perf_counter() - started_at)


def reward_function(completions: list[list[dict[str, str]]], record: list[dict[str, Any]], **_: Any) -> list[float]:
    return [score(completion[0]["content"], gold) for completion, gold in zip(completions, record, strict=True)]


def _rows() -> list[dict[str, Any]]:
    lines = (EXAMPLE / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{"prompt": row["messages"], "record": row["record"]} for row in rows]


def _config(job: dict[str, Any], steps: int, output: Path) -> GRPOConfig:
    numbers = job["method"]["grpo"]["hyperparameters"]
    rollouts = numbers["prompts_per_step"] * numbers["num_generations"]
    return GRPOConfig(
        output_dir=str(output),
        seed=job["seed"],
        max_steps=steps,
        per_device_train_batch_size=rollouts,
        num_generations=numbers["num_generations"],
        learning_rate=numbers["learning_rate"],
        beta=numbers["beta"],
        max_completion_length=numbers["max_completion_length"],
        temperature=numbers["temperature"],
        loss_type=numbers["loss_type"],
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        top_k=0,
        logging_steps=1,
        save_steps=25,
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
