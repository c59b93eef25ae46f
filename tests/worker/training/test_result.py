"""The exported files: they load anywhere, and answer as the trained policy did."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.servers.hub import running_hub
from tests.worker.training.runs import Ended, Trainers, toy_rows
from worker.run_directory import (
    RunDirectory,
)

HELD_OUT_PROMPTS = [row["prompt"] for row in toy_rows(9)[5:]]


def reload_and_answer(path: str) -> int:
    """Greedy answers to the held-out prompts, from the exported files alone."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(path) / "adapter"
    is_adapter = (folder / "adapter_config.json").exists()
    model = (AutoPeftModelForCausalLM if is_adapter else AutoModelForCausalLM).from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = []
    for prompt in HELD_OUT_PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        answers.append(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    (Path(path) / "answers.json").write_text(json.dumps(answers))
    return 0


def reloaded_answers(trainers: Trainers, ended: Ended, folder: Path) -> list[str]:
    shutil.copytree(ended.run.adapter, folder / "adapter")
    done = trainers.finish(RunDirectory(folder), trainers.start(RunDirectory(folder), reload_and_answer))
    assert done.exit_code == 0, done.log
    answers: list[str] = json.loads((folder / "answers.json").read_text())
    return answers


def greedy_answers(ended: Ended) -> list[str]:
    return [task.greedy.completion for task in ended.evaluation("final").tasks]


def test_the_adapter_reproduces_the_final_greedy_answers(trainers: Trainers, plain: Ended, tmp_path: Path) -> None:
    (tmp_path / "toy").symlink_to(trainers.model)  # where the card says that the base is looked for
    assert reloaded_answers(trainers, plain, tmp_path) == greedy_answers(plain)
    assert greedy_answers(plain) != [task.greedy.completion for task in plain.evaluation("baseline").tasks]


def test_a_whole_model_reproduces_the_final_greedy_answers(trainers: Trainers, full: Ended, tmp_path: Path) -> None:
    assert reloaded_answers(trainers, full, tmp_path) == greedy_answers(full)


def test_a_whole_model_generates_with_its_cache(full: Ended) -> None:
    assert json.loads((full.run.adapter / "config.json").read_text())["use_cache"] is True


def test_the_exported_files_name_no_folder_of_this_machine(trainers: Trainers, plain: Ended, full: Ended) -> None:
    for folder in (plain.run.adapter, plain.run.checkpoint(6), full.run.adapter, full.run.checkpoint(3)):
        for path in folder.iterdir():
            assert str(trainers.folder).encode() not in path.read_bytes(), path


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
def from_hub(trainers: Trainers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ended, dict[str, str]]]:
    """A run of `python -m worker.training.run` on a model of the Hub, and the environment that leads to that hub."""
    with running_hub({"org/toy": trainers.model}) as hub:
        cache = str(tmp_path_factory.mktemp("hub-cache"))
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": cache, "OMP_NUM_THREADS": "1"}
        run = trainers.lay_out("from-hub", hub=("org/toy", hub.commit), hyperparameters={"max_steps": 2})
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


def test_the_adapter_of_a_hub_model_loads_anywhere(from_hub: tuple[Ended, dict[str, str]]) -> None:
    ended, environment = from_hub
    code = "import sys; from tests.worker.training.test_result import reload_and_answer; reload_and_answer(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, ended.run.path], env={**os.environ, **environment}, check=True)
    assert json.loads((ended.run.path / "answers.json").read_text()) == greedy_answers(ended)
