"""The trainer process end to end, on a toy model: real TRL, real graders, real files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from core.status import Stage, StatusReason
from tests.servers.hub import running_hub
from tests.worker.trainer_runs import (
    WANTED_LETTERS,
    Ended,
    Workshop,
    open_workshop,
    save_toy_model,
    toy_rows,
    trainer_main,
)
from worker.run_directory import (
    FAILED_EXIT_CODE,
    STOPPED_EXIT_CODE,
    CheckpointSaved,
    EvaluationDone,
    Notice,
    RolloutsDone,
    RunDirectory,
    StageStarted,
    StepDone,
)

EVERY_STEP = {"every_steps": 1}
PHASES = ("generation", "weight_sync", "reward", "logprobs_no_grad", "forward", "backward", "optimizer", "checkpoint", "rest")  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with open_workshop(tmp_path_factory.mktemp("trainer")) as workshop:
        yield workshop


@pytest.fixture(scope="module")
def plain(workshop: Workshop) -> Ended:
    """LoRA on text prompts, two passes a step, over three epochs of two steps."""
    ended = workshop.train(
        "plain",
        hyperparameters={"max_steps": 6, "rollouts_per_pass": 4},
        evaluation={"every_steps": 2, "samples_per_task": 2},
        checkpoints=EVERY_STEP,
    )
    assert ended.exit_code == 0, ended.log
    return ended


def failed_with(ended: Ended, code: str) -> str:
    assert ended.exit_code == FAILED_EXIT_CODE, ended.log
    assert ended.outcome.failure is not None
    assert ended.outcome.failure.code == code, ended.log
    return ended.outcome.failure.message


# What a run says.


def test_the_journal_tells_the_run_in_order(plain: Ended) -> None:
    stages = [entry.stage for entry in plain.entries(StageStarted)]
    evaluations = [Stage.EVALUATING, Stage.TRAINING] * 2
    assert stages == [
        Stage.PREPARING,
        Stage.BASELINE,
        Stage.TRAINING,
        *evaluations,
        Stage.EVALUATING,
        Stage.EXPORTING,
    ]
    assert [entry.step for entry in plain.entries(StepDone)] == [1, 2, 3, 4, 5, 6]
    assert [entry.step for entry in plain.entries(RolloutsDone)] == [1, 2, 3, 4, 5, 6]
    assert [entry.name for entry in plain.entries(EvaluationDone)] == ["baseline", "step-2", "step-4", "final"]
    assert (plain.outcome.kind, plain.outcome.step) == ("finished", 6)


def test_every_step_carries_trls_metrics_by_their_own_names(plain: Ended) -> None:
    for metrics in plain.steps.values():
        assert {"loss", "grad_norm", "learning_rate", "reward", "reward_std", "frac_reward_zero_std"} <= metrics.keys()
        assert {"rewards/letters/mean", "completions/clipped_ratio", "entropy", "signal/silent_share"} <= metrics.keys()


def test_the_phases_of_a_step_sum_to_its_wall_time(plain: Ended) -> None:
    lines = plain.entries(StepDone)
    for line in lines:
        parts = [value for name, value in line.metrics.items() if name.startswith("phase/") and name != "phase/total_s"]
        assert sum(parts) == pytest.approx(line.metrics["phase/total_s"])  # type: ignore[arg-type]
        assert {f"phase/{phase}_s" for phase in PHASES} <= line.metrics.keys()
    for phase in ("generation", "reward", "forward", "backward", "optimizer"):
        assert all(line.metrics[f"phase/{phase}_s"] for line in lines), phase
    claimed = sum(line.metrics["phase/total_s"] or 0 for line in lines[1:])
    assert claimed == pytest.approx(lines[-1].at - lines[0].at, rel=0.02)


def test_the_phases_of_the_process_sum_to_its_total(plain: Ended) -> None:
    assert plain.outcome.summary is not None
    phases = plain.outcome.summary.phases.model_dump()
    total = phases.pop("total")
    assert sum(phases.values()) == pytest.approx(total)
    assert phases["load"] > 0
    assert phases["evaluation"] > 0


def test_rollouts_show_groups_their_rewards_and_trls_advantages(plain: Ended) -> None:
    for entry in plain.entries(RolloutsDone):
        assert [rollout.index for rollout in entry.rollouts] == list(range(8))
        for group in (entry.rollouts[:4], entry.rollouts[4:]):
            assert len({(rollout.row, rollout.prompt) for rollout in group}) == 1
            rewards = [rollout.reward or 0.0 for rollout in group]
            expected = [(reward - fmean(rewards)) / (stdev(rewards) + 1e-4) for reward in rewards]
            assert [rollout.advantage for rollout in group] == pytest.approx(expected, abs=1e-4)
        graded = [rollout.grades["letters"].value for rollout in entry.rollouts]
        assert plain.steps[entry.step]["reward"] == pytest.approx(fmean(value or 0.0 for value in graded))


def test_a_rollout_says_how_it_ended(plain: Ended) -> None:
    reasons = {rollout.finish_reason for rollout in plain.rollouts}
    assert reasons == {"stop", "length"}
    assert all(rollout.completion_tokens == 8 for rollout in plain.rollouts if rollout.finish_reason == "length")


def test_the_summary_counts_the_whole_run(plain: Ended) -> None:
    summary, rollouts = plain.outcome.summary, plain.rollouts
    assert summary is not None
    assert (summary.train_rows, summary.held_out_rows, summary.overlap_rows, summary.final_step) == (5, 4, 0, 6)
    assert summary.generated_tokens == sum(rollout.completion_tokens for rollout in rollouts)
    assert summary.trained_tokens == plain.steps[6]["num_tokens"]
    assert summary.truncated_share == fmean(rollout.finish_reason == "length" for rollout in rollouts)
    assert summary.ungraded_rollouts == 0
    assert summary.resolved_parameters["grpo"]["gradient_accumulation_steps"] == 2
    assert summary.environment.device == "cpu"
    assert summary.environment.libraries["trl"] == "1.16.0"


def test_every_evaluation_answers_the_same_tasks(plain: Ended) -> None:
    names = ("baseline", "step-2", "step-4", "final")
    tasks = {tuple((task.task, task.prompt_sha256) for task in plain.evaluation(name).tasks) for name in names}
    assert len(tasks) == 1
    for task in plain.evaluation("final").tasks:
        assert len(task.sampled) == 2
        assert task.greedy.passed == ((task.greedy.reward or 0) >= 0.3)


def test_the_best_evaluation_has_a_checkpoint(plain: Ended) -> None:
    assert plain.outcome.summary is not None
    scores = {
        name: fmean(task.greedy.reward or 0 for task in plain.evaluation(name).tasks)
        for name in ("baseline", "step-2", "step-4", "final")
    }
    assert plain.outcome.summary.best_evaluation == max(scores, key=scores.__getitem__)
    for saved in plain.entries(CheckpointSaved):
        so_far = [scores[name] for name in scores if name == "baseline" or name < f"step-{saved.step}"]
        expected = saved.step in {2, 4} and scores[f"step-{saved.step}"] > max(so_far)
        assert saved.is_best is expected
        assert (plain.run.checkpoint(saved.step) / "adapter_model.safetensors").exists()


# The algorithm is TRL's.


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


def test_the_weights_are_those_of_a_bare_trl_script(workshop: Workshop, plain: Ended) -> None:
    run = workshop.lay_out("bare", hyperparameters={"max_steps": 6, "rollouts_per_pass": 4})
    bare = workshop.finish(run, workshop.start(run, train_with_bare_trl))
    assert bare.exit_code == 0, bare.log
    assert bare.weights == plain.weights


def test_evaluations_and_checkpoints_leave_training_as_it_is(workshop: Workshop, plain: Ended) -> None:
    undisturbed = workshop.train("undisturbed", hyperparameters={"max_steps": 6, "rollouts_per_pass": 4})
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
def test_runs_of_many_kinds_finish(workshop: Workshop, name: str, layout: dict[str, Any]) -> None:
    ended = workshop.train(name.replace(" ", "-"), **layout)
    assert ended.exit_code == 0, ended.log
    assert len(ended.steps) == 3


def test_chat_prompts_go_through_the_chat_template(workshop: Workshop, tmp_path: Path) -> None:
    model = shutil.copytree(workshop.model, tmp_path / "model")
    template = "{% if polite %}please {% endif %}" + (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text(template)
    ended = workshop.train(
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


def test_a_held_out_part_is_split_off_by_the_seed(workshop: Workshop) -> None:
    run = workshop.lay_out("split", rows=toy_rows(20), hyperparameters={"max_steps": 1})
    plan = json.loads((run.path / "spec.json").read_text())
    plan["spec"]["held_out"] = None
    (run.path / "spec.json").write_text(json.dumps(plan))
    ended = workshop.finish(run, workshop.start(run))
    summary = ended.outcome.summary
    assert summary is not None
    assert (summary.train_rows, summary.held_out_rows, summary.overlap_rows) == (18, 2, 0)
    tasks = {task.task for task in ended.evaluation("final").tasks}
    assert tasks.isdisjoint(rollout.row for rollout in ended.rollouts)


# Rewards.

SOMETIMES = """\
def reward(completion, want):
    if "a" in completion:
        raise ValueError("no letter a, please")
    return len(completion) / 10
"""
LENGTH = "def reward(completion):\n    return len(completion) / 10\n"


@pytest.fixture(scope="module")
def shaky(workshop: Workshop) -> Ended:
    """Two terms; one of them fails on some completions."""
    ended = workshop.train("shaky", rewards={"length": LENGTH, "sometimes": SOMETIMES})
    assert ended.exit_code == 0, ended.log
    return ended


def test_a_failed_term_blanks_its_rollout_and_is_never_a_zero(shaky: Ended) -> None:
    failed = [rollout for rollout in shaky.rollouts if "a" in rollout.completion]
    assert failed
    for rollout in failed:
        grade = rollout.grades["sometimes"]
        assert (grade.outcome, grade.value, rollout.reward, rollout.advantage) == ("user_error", None, None, 0.0)
        assert "no letter a, please" in (grade.error or "")
        assert rollout.grades["length"].outcome == "scored"
    for rollout in shaky.rollouts:
        if rollout not in failed:
            assert rollout.reward == pytest.approx(len(rollout.completion) / 5)


def test_trl_averages_over_graded_rollouts_only(shaky: Ended) -> None:
    for entry in shaky.entries(RolloutsDone):
        graded = [len(rollout.completion) / 10 for rollout in entry.rollouts if rollout.reward is not None]
        assert shaky.steps[entry.step]["rewards/length/mean"] == pytest.approx(fmean(graded))
        assert shaky.steps[entry.step]["reward"] == pytest.approx(2 * fmean(graded))


def test_ungraded_rollouts_and_answers_are_counted(shaky: Ended) -> None:
    assert shaky.outcome.summary is not None
    assert shaky.outcome.summary.ungraded_rollouts == sum(rollout.reward is None for rollout in shaky.rollouts)
    answers = [task.sampled[0] for name in ("baseline", "final") for task in shaky.evaluation(name).tasks]
    assert any(answer.reward is None and answer.passed is None for answer in answers)
    assert "evaluation_errors" in {notice.code for notice in shaky.entries(Notice)}


def test_a_reward_that_always_fails_ends_the_run_before_training(workshop: Workshop) -> None:
    source = "def reward(completion, want):\n    return want['nothing']\n"
    message = failed_with(workshop.train("broken", rewards={"broken": source}), "grader_failed")
    assert "TypeError" in message
    assert "want['nothing']" in message


def test_a_reward_that_stops_working_ends_the_run(workshop: Workshop) -> None:
    source = (
        "def reward(completions, trainer_state, **columns):\n    if trainer_state.global_step == 1:\n        1 / 0\n"
    )
    source += "    return [len(text) / 10 for text in completions]\n"
    ended = workshop.train("stops-working", rewards={"late": source})
    assert "ZeroDivisionError" in failed_with(ended, "grader_failed")
    assert (ended.outcome.step, len(ended.steps)) == (1, 1)


def test_a_reward_that_cannot_be_loaded_is_named(workshop: Workshop) -> None:
    source = "import nothing_of_this_name\n\ndef reward(completion):\n    return 1.0\n"
    run = workshop.lay_out("unloadable")
    run.reward_source("letters").write_text(source)
    ended = workshop.finish(run, workshop.start(run))
    assert "ModuleNotFoundError" in failed_with(ended, "grader_failed")
    assert ended.outcome.failure is not None
    assert not ended.outcome.failure.retryable


def test_numbers_that_a_reward_reports_become_metrics(workshop: Workshop) -> None:
    source = "def reward(completions, log_metric, **columns):\n    log_metric('answers', len(completions))\n"
    source += "    return [len(text) / 10 for text in completions]\n"
    ended = workshop.train("reporting", rewards={"length": source}, hyperparameters={"max_steps": 1})
    assert ended.steps[1]["answers"] == 8


# What can be wrong with a job.


def test_qlora_is_refused_by_name_without_cuda(workshop: Workshop) -> None:
    ended = workshop.train("qlora", adapter={"method": "qlora"})
    failed_with(ended, "qlora_needs_cuda")
    assert ended.outcome.failure is not None
    assert ended.outcome.failure.reason is StatusReason.INVALID_SPEC


def test_vllm_is_refused_by_name_where_it_is_not_installed(workshop: Workshop) -> None:
    failed_with(workshop.train("vllm", hyperparameters={"use_vllm": True}), "vllm_not_installed")


def test_chat_prompts_need_a_chat_template(workshop: Workshop, tmp_path: Path) -> None:
    save_toy_model(tmp_path / "model", chat=False)
    ended = workshop.train("templateless", model=tmp_path / "model", rows=toy_rows(5, chat=True))
    assert "chat template" in failed_with(ended, "no_chat_template")


def test_weights_that_are_not_safetensors_are_refused(workshop: Workshop, tmp_path: Path) -> None:
    model = shutil.copytree(workshop.model, tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "safetensors" in failed_with(workshop.train("pickled", model=model), "model_unusable")


def test_code_in_a_model_repository_is_not_run(workshop: Workshop, tmp_path: Path) -> None:
    model = shutil.copytree(workshop.model, tmp_path / "model")
    configuration = json.loads((model / "config.json").read_text())
    configuration |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (model / "config.json").write_text(json.dumps(configuration))
    (model / "theirs.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    failed_with(workshop.train("with-code", model=model), "model_unusable")
    assert not (tmp_path / "run").exists()


def test_a_model_with_missing_weights_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    model = shutil.copytree(workshop.model, tmp_path / "model")
    configuration = json.loads((model / "config.json").read_text())
    configuration |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (model / "config.json").write_text(json.dumps(configuration))
    assert "lack" in failed_with(workshop.train("holes", model=model), "model_unusable")


def test_rows_with_long_prompts_are_left_out_and_counted(workshop: Workshop) -> None:
    ended = workshop.train("shortened", hyperparameters={"max_steps": 1, "max_prompt_length": 4})
    assert ended.exit_code == 0, ended.log
    (notice,) = ended.entries(Notice)
    assert (notice.code, notice.data) == ("rows_left_out", {"rows": 2})
    assert {rollout.row for rollout in ended.rollouts} <= {1, 2, 3, 5}


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("all long", {"hyperparameters": {"max_prompt_length": 1}}, "no training rows"),
        ("one task", {"held_out": toy_rows(1)}, "1 held-out tasks"),
        ("mixed", {"rows": [*toy_rows(2), *toy_rows(1, chat=True)]}, "line 3 is a list of messages"),
    ],
)
def test_data_that_cannot_be_trained_on_is_named(
    workshop: Workshop, name: str, layout: dict[str, Any], words: str
) -> None:
    assert words in failed_with(workshop.train(name.replace(" ", "-"), **layout), "data_unusable")


def test_held_out_rows_that_are_also_trained_on_are_counted(workshop: Workshop) -> None:
    ended = workshop.train("overlap", held_out=toy_rows(6)[3:], hyperparameters={"max_steps": 1})
    assert ended.outcome.summary is not None
    assert ended.outcome.summary.overlap_rows == 2
    assert "held_out_overlap" in {notice.code for notice in ended.entries(Notice)}


def test_what_nobody_foresaw_is_a_crash_with_its_traceback_in_the_log(workshop: Workshop) -> None:
    run = workshop.lay_out("crash")
    run.training_file.unlink()
    ended = workshop.finish(run, workshop.start(run))
    assert "FileNotFoundError" in failed_with(ended, "trainer_crashed")
    assert "Traceback" in ended.log


# Stopping and going on.

LONG: dict[str, Any] = {
    "hyperparameters": {"max_steps": 6, "num_iterations": 2, "rollouts_per_pass": 4, "lr_scheduler_type": "linear"},
    "adapter": {"dropout": 0.1},
    "evaluation": {"every_steps": 4},
    "checkpoints": EVERY_STEP,
}


@pytest.fixture(scope="module")
def uninterrupted(workshop: Workshop) -> Ended:
    """Two optimizer steps a generation, four an epoch: the hardest case for resuming."""
    ended = workshop.train("uninterrupted", **LONG)
    assert ended.exit_code == 0, ended.log
    return ended


def numbers(ended: Ended, after: int) -> dict[int, dict[str, float | None]]:
    """The metrics of later steps, without what a clock says."""
    return {
        step: {name: value for name, value in metrics.items() if not name.startswith("phase/") and name != "step_time"}
        for step, metrics in ended.steps.items()
        if step > after
    }


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6])
def test_a_resumed_run_ends_as_if_it_had_never_stopped(workshop: Workshop, uninterrupted: Ended, step: int) -> None:
    resumed = workshop.train(f"resumed-{step}", resume=(uninterrupted.run, step), **LONG)
    assert resumed.exit_code == 0, resumed.log
    assert numbers(resumed, step) == numbers(uninterrupted, step)
    assert resumed.weights == uninterrupted.weights
    assert resumed.evaluation("final").tasks == uninterrupted.evaluation("final").tasks
    ours, theirs = resumed.outcome.summary, uninterrupted.outcome.summary
    assert ours is not None
    assert theirs is not None
    apart = {"phases", "environment"}
    assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart)


def test_a_fully_trained_model_resumes_exactly(workshop: Workshop) -> None:
    layout: dict[str, Any] = {
        "adapter": {"method": "full"},
        "hyperparameters": {"learning_rate": 0.001, "beta": 0.1},
        "checkpoints": EVERY_STEP,
    }
    whole = workshop.train("whole", **layout)
    assert whole.exit_code == 0, whole.log
    resumed = workshop.train("whole-resumed", resume=(whole.run, 2), **layout)
    assert numbers(resumed, 2) == numbers(whole, 2)
    assert resumed.weights == whole.weights


def test_told_to_stop_it_leaves_at_a_step_with_a_checkpoint(workshop: Workshop, uninterrupted: Ended) -> None:
    layout = {**LONG, "checkpoints": {"every_steps": 100}}
    run = workshop.lay_out("stopped", **layout)
    process = workshop.start(run)
    wait_until(lambda: any(isinstance(entry, StepDone) for entry, _ in run.read_journal()))
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = workshop.finish(run, process)
    assert stopped.exit_code == STOPPED_EXIT_CODE, stopped.log
    step = stopped.outcome.step
    assert (stopped.outcome.kind, stopped.entries(CheckpointSaved)[-1].step) == ("stopped", step)
    assert 1 <= step < 6
    resumed = workshop.train("stopped-resumed", resume=(run, step), **layout)
    assert resumed.weights == uninterrupted.weights


def test_told_to_stop_during_an_evaluation_it_takes_it_after_resuming(workshop: Workshop, uninterrupted: Ended) -> None:
    run = workshop.lay_out("stopped-evaluating", **LONG)
    process = workshop.start(run)
    wait_until(lambda: run.checkpoint(3).exists())
    wait_until(lambda: is_evaluating_after_step(run, 4))
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = workshop.finish(run, process)
    if stopped.outcome.step != 4:
        pytest.fail("the evaluation was over before the signal came")
    assert stopped.run.read_evaluation("step-4") is None
    resumed = workshop.train("evaluated-later", resume=(run, 4), **LONG)
    assert resumed.evaluation("step-4").tasks == uninterrupted.evaluation("step-4").tasks
    assert resumed.weights == uninterrupted.weights


def test_the_baseline_of_an_earlier_attempt_is_reused(workshop: Workshop, uninterrupted: Ended) -> None:
    run = workshop.lay_out("reusing")
    shutil.copy(uninterrupted.run.evaluation("baseline"), run.evaluation("baseline"))
    ended = workshop.finish(run, workshop.start(run))
    assert ended.exit_code == 0, ended.log
    assert Stage.BASELINE not in [entry.stage for entry in ended.entries(StageStarted)]
    assert [entry.name for entry in ended.entries(EvaluationDone)] == ["final"]
    assert ended.evaluation("baseline") == uninterrupted.evaluation("baseline")


def is_evaluating_after_step(run: RunDirectory, step: int) -> bool:
    entries = [entry for entry, _ in run.read_journal()]
    stepped = any(isinstance(entry, StepDone) and entry.step == step for entry in entries)
    return stepped and isinstance(entries[-1], StageStarted) and entries[-1].stage is Stage.EVALUATING


def wait_until(fact: Callable[[], bool], deadline_s: float = 120) -> None:
    end = time.monotonic() + deadline_s
    while not fact():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


# The result.

RELOAD = """\
import json, sys
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, prompts = sys.argv[1], json.loads(sys.argv[2])
load = AutoModelForCausalLM if (len(sys.argv) > 3) else AutoPeftModelForCausalLM
model, tokenizer = load.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
model.eval()
for prompt in prompts:
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    print(json.dumps(tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True)))
"""


def reload_and_answer(folder: Path, cwd: Path, *arguments: str, **environment: str) -> list[str]:
    """Greedy answers to the held-out prompts by a process that knows nothing but the exported folder."""
    prompts = json.dumps([row["prompt"] for row in toy_rows(9)[5:]])
    command = [sys.executable, "-c", RELOAD, str(folder), prompts, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def greedy_answers(ended: Ended) -> list[str]:
    return [task.greedy.completion for task in ended.evaluation("final").tasks]


def test_the_adapter_reproduces_the_final_greedy_answers(workshop: Workshop, plain: Ended, tmp_path: Path) -> None:
    (tmp_path / "toy").symlink_to(workshop.model)  # where the card says that the base is looked for
    assert reload_and_answer(plain.run.adapter, tmp_path) == greedy_answers(plain)
    assert greedy_answers(plain) != [task.greedy.completion for task in plain.evaluation("baseline").tasks]


def test_the_exported_files_name_no_folder_of_this_machine(workshop: Workshop, plain: Ended) -> None:
    for folder in (plain.run.adapter, plain.run.checkpoint(6)):
        for path in folder.iterdir():
            assert str(workshop.folder).encode() not in path.read_bytes(), path.name


def test_the_model_card_says_what_it_is(plain: Ended) -> None:
    _, front_matter, body = (plain.run.adapter / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front_matter) == {
        "base_model": "toy",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["grpo", "trl", "lora", "podium"],
    }
    assert "| rollouts per step | 2 prompts x 4 completions |" in body


@pytest.fixture(scope="module")
def from_hub(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ended, dict[str, str]]]:
    """A run of `python -m worker.training.run` on a model of the Hub, and the environment that leads to that hub."""
    with running_hub({"org/toy": workshop.model}) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path_factory.mktemp("hub-cache"))}
        run = workshop.lay_out("from-hub", hub=("org/toy", hub.commit), hyperparameters={"max_steps": 2})
        command = [sys.executable, "-m", "worker.training.run", str(run.path)]
        with run.log.open("wb") as log:
            done = subprocess.run(command, env={**os.environ, **environment}, stdout=log, stderr=log, check=False)
        ended = Ended(run, done.returncode)
        assert ended.exit_code == 0, ended.log
        yield ended, environment


def test_a_hub_model_is_named_by_id_and_commit(from_hub: tuple[Ended, dict[str, str]]) -> None:
    ended, _ = from_hub
    plan = ended.run.read_plan()
    configuration = json.loads((ended.run.adapter / "adapter_config.json").read_text())
    assert configuration["base_model_name_or_path"] == "org/toy"
    assert configuration["revision"] == plan.spec.model.revision


def test_the_adapter_of_a_hub_model_loads_anywhere(from_hub: tuple[Ended, dict[str, str]], tmp_path: Path) -> None:
    ended, environment = from_hub
    answers = reload_and_answer(ended.run.adapter, tmp_path, **environment)
    assert answers == greedy_answers(ended)


def test_a_whole_model_is_exported_in_safetensors(workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop.train("full", adapter={"method": "full"}, hyperparameters={"learning_rate": 0.001})
    assert ended.exit_code == 0, ended.log
    assert json.loads((ended.run.adapter / "config.json").read_text()).get("use_cache", True) is True
    assert reload_and_answer(ended.run.adapter, tmp_path, "whole") == greedy_answers(ended)
