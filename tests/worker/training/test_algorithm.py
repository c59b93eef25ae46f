"""Training itself: it is TRL's, whatever is done around it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load

from tests.worker.training.runs import Ended, Trainers, toy_rows
from worker.run_directory import (
    RunDirectory,
)


def train_with_bare_trl(path: str) -> int:
    """The same job as a plain TRL script: no subclass, no callbacks, no graders."""
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    from worker.training import config
    from worker.training.data import load_data, training_set
    from worker.training.environment import detect_device

    run = RunDirectory(Path(path))
    plan = run.read_plan()
    tokenizer = AutoTokenizer.from_pretrained(plan.model_path)
    rows = load_data(run, plan.spec, tokenizer).training

    def letters(completions: list[str], row: list[int], **_: Any) -> list[float]:
        wanted = [rows[place].columns["want"] for place in row]
        return [sum(letter in want for letter in text) / 10 for text, want in zip(completions, wanted, strict=True)]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(plan.model_path),
        reward_funcs=letters,
        args=config.grpo_config(plan.spec, detect_device(), run.path / "output"),
        train_dataset=training_set(rows, plan.spec.hyperparameters.prompts_per_step),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model(str(run.adapter))
    return 0


def test_the_weights_are_those_of_a_bare_trl_script(trainers: Trainers, plain: Ended) -> None:
    """To the bit without the fast path; with it, as far as single precision goes."""
    layout: dict[str, Any] = {"hyperparameters": {"max_steps": 6, "rollouts_per_pass": 4, "fast_path": False}}
    run = trainers.lay_out("bare", **layout)
    bare = trainers.finish(run, trainers.start(run, train_with_bare_trl))
    assert bare.exit_code == 0, bare.log
    assert trainers.train("every-pass", **layout).weights == bare.weights
    fast, slow = load(plain.weights), load(bare.weights)
    assert fast.keys() == slow.keys()
    assert max(float(abs(fast[name] - slow[name]).max()) for name in fast) < 1e-4


def test_evaluations_and_checkpoints_leave_training_as_it_is(trainers: Trainers, plain: Ended) -> None:
    undisturbed = trainers.train("undisturbed", hyperparameters={"max_steps": 6, "rollouts_per_pass": 4})
    assert undisturbed.weights == plain.weights


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("chat", {"rows": toy_rows(5, chat=True), "held_out": toy_rows(9, chat=True)[5:]}),
        ("few rows", {"rows": toy_rows(1), "held_out": toy_rows(9)[5:]}),
        ("kl", {"hyperparameters": {"beta": 0.1, "loss_type": "grpo", "gradient_checkpointing": True}}),
        ("off-policy", {"hyperparameters": {"num_iterations": 2, "rollouts_per_pass": 4, "loss_type": "cispo"}}),
    ],
)
def test_runs_of_many_kinds_finish(trainers: Trainers, name: str, layout: dict[str, Any]) -> None:
    ended = trainers.train(name.replace(" ", "-"), **layout)
    assert ended.exit_code == 0, ended.log
    assert len(ended.steps) == 3


def test_chat_prompts_go_through_the_chat_template(trainers: Trainers, tmp_path: Path) -> None:
    model = shutil.copytree(trainers.model, tmp_path / "model")
    template = "{% if polite %}please {% endif %}" + (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(template)
    ended = trainers.train(
        "chat-template",
        model=model,
        rows=toy_rows(2, chat=True),
        held_out=toy_rows(9, chat=True)[5:],
        chat_template_kwargs={"polite": True},
        hyperparameters={"max_steps": 1},
    )
    assert ended.exit_code == 0, ended.log
    assert {rollout.prompt.replace(" ", "") for rollout in ended.rollouts} == {
        "please<|user|>ad<|end|><|assistant|>",
        "please<|user|>hlp<|end|><|assistant|>",
    }


def test_a_held_out_part_is_split_off_by_the_seed(trainers: Trainers) -> None:
    run = trainers.lay_out("split", rows=toy_rows(20), hyperparameters={"max_steps": 1})
    plan = json.loads((run.path / "spec.json").read_text())
    plan["spec"]["held_out"] = None
    (run.path / "spec.json").write_text(json.dumps(plan))
    ended = trainers.finish(run, trainers.start(run))
    summary = ended.outcome.summary
    assert summary is not None
    assert (summary.train_rows, summary.held_out_rows, summary.overlap_rows) == (18, 2, 0)
    tasks = {task.task for task in ended.evaluation("final").tasks}
    assert tasks.isdisjoint(rollout.row for rollout in ended.rollouts)
