"""Jobs that cannot run, each named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from core.status import StatusReason
from tests.worker.training.runs import Trainers, failed_with, toy_rows
from worker.run_directory import (
    Notice,
)


def test_qlora_is_refused_by_name_without_cuda(trainers: Trainers) -> None:
    ended = trainers.train("qlora", adapter={"method": "qlora"})
    failed_with(ended, "qlora_needs_cuda")
    assert ended.outcome.failure is not None
    assert ended.outcome.failure.reason is StatusReason.INVALID_SPEC


def test_vllm_is_refused_by_name_where_it_is_not_installed(trainers: Trainers) -> None:
    failed_with(trainers.train("vllm", hyperparameters={"use_vllm": True}), "vllm_not_installed")


def test_chat_prompts_need_a_chat_template(trainers: Trainers, tmp_path: Path) -> None:
    model = trainers.make_model(tmp_path / "model", chat=False)
    ended = trainers.train("templateless", model=model, rows=toy_rows(5, chat=True))
    assert "chat template" in failed_with(ended, "no_chat_template")


def test_weights_that_are_not_safetensors_are_refused(trainers: Trainers, tmp_path: Path) -> None:
    model = shutil.copytree(trainers.model, tmp_path / "model")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "safetensors" in failed_with(trainers.train("pickled", model=model), "model_unusable")


def test_code_in_a_model_repository_is_not_run(trainers: Trainers, tmp_path: Path) -> None:
    model = shutil.copytree(trainers.model, tmp_path / "model")
    configuration = json.loads((model / "config.json").read_text())
    configuration |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (model / "config.json").write_text(json.dumps(configuration))
    (model / "theirs.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    failed_with(trainers.train("with-code", model=model), "model_unusable")
    assert not (tmp_path / "run").exists()


def test_a_model_with_missing_weights_is_refused(trainers: Trainers, tmp_path: Path) -> None:
    model = shutil.copytree(trainers.model, tmp_path / "model")
    configuration = json.loads((model / "config.json").read_text())
    configuration |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (model / "config.json").write_text(json.dumps(configuration))
    assert "lack" in failed_with(trainers.train("holes", model=model), "model_unusable")


def test_rows_with_long_prompts_are_left_out_and_counted(trainers: Trainers) -> None:
    ended = trainers.train("shortened", hyperparameters={"max_steps": 1, "max_prompt_length": 4})
    assert ended.exit_code == 0, ended.log
    (notice,) = ended.entries(Notice)
    assert (notice.code, notice.data) == ("rows_left_out", {"rows": 2})
    assert {rollout.row for rollout in ended.rollouts} <= {1, 2, 3, 5}


LONG_ROWS = [{**row, "prompt": f"{row['prompt']} " * 20} for row in toy_rows(3)]


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("all long", {"hyperparameters": {"max_prompt_length": 1}}, "no training rows"),
        (
            "all tasks long",
            {"held_out": LONG_ROWS, "hyperparameters": {"max_prompt_length": 8}},
            "0 held-out tasks once prompts over 8 tokens are left out",
        ),
        ("one task", {"held_out": toy_rows(1)}, "1 held-out tasks"),
        ("mixed", {"rows": [*toy_rows(2), *toy_rows(1, chat=True)]}, "line 3 is a list of messages"),
    ],
)
def test_data_that_cannot_be_trained_on_is_named(
    trainers: Trainers, name: str, layout: dict[str, Any], words: str
) -> None:
    assert words in failed_with(trainers.train(name.replace(" ", "-"), **layout), "data_unusable")


def test_held_out_rows_that_are_also_trained_on_are_counted(trainers: Trainers) -> None:
    ended = trainers.train("overlap", held_out=toy_rows(6)[3:], hyperparameters={"max_steps": 1})
    assert ended.outcome.summary is not None
    assert ended.outcome.summary.overlap_rows == 2
    assert "held_out_overlap" in {notice.code for notice in ended.entries(Notice)}


def test_what_nobody_foresaw_is_a_crash_with_its_traceback_in_the_log(trainers: Trainers) -> None:
    run = trainers.lay_out("crash")
    run.training_file.unlink()
    ended = trainers.finish(run, trainers.start(run))
    assert "FileNotFoundError" in failed_with(ended, "trainer_crashed")
    assert "Traceback" in ended.log
