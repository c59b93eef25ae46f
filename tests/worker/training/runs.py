"""Real runs of the trainer on a toy model: a folder laid out as the supervisor would, a process, and what it left."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

from core.ids import CheckpointId, FileId, JobId
from core.results import Evaluation
from core.reward_source import analyse
from core.rows import FileFormat
from core.signal_report import ProbeSize
from core.spec import CheckpointRef, DataRef, JobSpec, PinnedReward
from worker.run_directory import FAILED_EXIT_CODE, Outcome, Rollout, RolloutsDone, RunDirectory, RunPlan, StepDone

LETTERS = "abcdefghijklmnopqrstuvwxyz "
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WANTED_LETTERS = "def reward(completion, want):\n    return sum(letter in want for letter in completion) / 10\n"
TOY_SPEC: dict[str, Mapping[str, Any]] = {
    "hyperparameters": {
        "num_generations": 4,
        "prompts_per_step": 2,
        "max_steps": 3,
        "learning_rate": 0.05,
        "max_completion_length": 8,
    },
    "adapter": {"r": 4, "alpha": 8},
    "evaluation": {"pass_threshold": 0.3},
    "checkpoints": {"every_steps": 100},
}
DEADLINE_S = 240

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Ended:
    """A trainer that has ended."""

    run: RunDirectory
    exit_code: int

    @property
    def outcome(self) -> Outcome:
        outcome = self.run.read_outcome()
        assert outcome is not None, self.log
        return outcome

    @property
    def log(self) -> str:
        return self.run.log.read_text()

    @property
    def steps(self) -> dict[int, dict[str, float | None]]:
        return {entry.step: entry.metrics for entry in self.entries(StepDone)}

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for entry in self.entries(RolloutsDone) for rollout in entry.rollouts]

    @property
    def weights(self) -> bytes:
        """The trained weights, bit for bit."""
        (path,) = self.run.adapter.glob("*model.safetensors")
        return path.read_bytes()

    def entries(self, kind: type[Entry]) -> list[Entry]:
        return [entry for entry, _ in self.run.read_journal() if isinstance(entry, kind)]

    def evaluation(self, name: str) -> Evaluation:
        evaluation = self.run.read_evaluation(name)
        assert evaluation is not None, self.log
        return evaluation


@dataclass(frozen=True)
class Trainers:
    """Where runs are laid out and started, each in a process of its own.

    They are forked from a server that has imported torch and TRL once, which is what takes a trainer its time.
    """

    folder: Path
    model: Path
    processes: ForkServerContext
    deadline_s: float = DEADLINE_S

    def train(self, name: str, **layout: Any) -> Ended:
        run = self.lay_out(name, **layout)
        return self.finish(run, self.start(run))

    def lay_out(
        self,
        name: str,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        held_out: Sequence[Mapping[str, Any]] | None = None,
        rewards: Mapping[str, str] | None = None,
        model: Path | None = None,
        hub: tuple[str, str] | None = None,
        resume: tuple[RunDirectory, int] | None = None,
        baseline: RunDirectory | None = None,
        start: tuple[RunDirectory, int] | None = None,
        grace_s: float = 25.0,
        probe: ProbeSize | None = None,
        **changes: Any,
    ) -> RunDirectory:
        """A run directory. `rewards`: sources by name. `hub`: id and commit. `changes` go into TOY_SPEC's sections."""
        run = RunDirectory(self.folder / name)
        for part in ("data", "rewards", "evaluations"):
            (run.path / part).mkdir(parents=True)
        reference = {"name": "toy", "source": "local", "revision": None}
        if hub is not None:
            reference = {"name": hub[0], "source": "hub", "revision": hub[1]}
        spec = JobSpec.model_validate(
            {
                "model": reference,
                "training": _write_rows(run.training_file, toy_rows(5) if rows is None else rows),
                "held_out": _write_rows(run.held_out_file, toy_rows(9)[5:] if held_out is None else held_out),
                "rewards": [_pin(run, *term) for term in (rewards or {"letters": WANTED_LETTERS}).items()],
                "seed": 7,
                **{name: _changed(name, changes.get(name, {})) for name in TOY_SPEC | changes},
            }
        )
        if resume is not None:
            earlier, step = resume
            run.resume.symlink_to(earlier.checkpoint(step))
            baseline = baseline or earlier
            scored = f"step-{step}"
            if earlier.evaluation(scored).exists():
                run.evaluation(scored).symlink_to(earlier.evaluation(scored))
        if baseline is not None and baseline.evaluation("baseline").exists():
            run.evaluation("baseline").symlink_to(baseline.evaluation("baseline"))
        if start is not None:
            earlier, step = start
            run.start.symlink_to(earlier.checkpoint(step))
            spec = spec.model_copy(update={"start_from": _reference(step)})
        run.create(
            RunPlan(
                job_id="ftjob-1",
                attempt=1,
                spec=spec,
                model_path=None if hub else model or self.model,
                resume_step=resume[1] if resume else None,
                stop_grace_s=grace_s,
                probe=probe,
            )
        )
        return run

    def train_killed(self, name: str, faults: Sequence[str], **layout: Any) -> list[Ended]:
        """Attempt after attempt, each killed at its fault (`core.failpoints`) and followed by one that goes on from
        the newest checkpoint there is, as the supervisor does; the last is left to finish.
        """
        ended: list[Ended] = []
        resume: tuple[RunDirectory, int] | None = None
        for number, fault in enumerate([*faults, ""]):
            run = self.lay_out(
                f"{name}-a{number + 1}", resume=resume, baseline=ended[0].run if ended else None, **layout
            )
            ended.append(self.finish(run, self.start(run, partial(faulty_main, fault))))
            saved = [int(folder.name.removeprefix("step-")) for folder in run.path.glob("checkpoints/step-*")]
            resume = (run, max(saved)) if saved else resume
        return ended

    def make_model(self, folder: Path, *, chat: bool = True) -> Path:
        maker = self.processes.Process(target=save_toy_model, args=(folder, chat))
        maker.start()
        maker.join(DEADLINE_S)
        assert maker.exitcode == 0
        return folder

    def start(self, run: RunDirectory, main: Callable[[str], int] | None = None) -> ForkServerProcess:
        process = self.processes.Process(target=_enter, args=(str(run.path), main or trainer_main))
        process.start()
        return process

    def finish(self, run: RunDirectory, process: ForkServerProcess) -> Ended:
        process.join(self.deadline_s)
        assert process.exitcode is not None, "the trainer hangs"
        return Ended(run, process.exitcode)


@contextlib.contextmanager
def open_trainers(folder: Path) -> Iterator[Trainers]:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["worker.training.job"])
    trainers = Trainers(folder, folder / "toy-model", processes)
    trainers.make_model(trainers.model)
    yield trainers


def failed_with(ended: Ended, code: str) -> str:
    """The message of a run that must have failed with this code."""
    failure = ended.outcome.failure
    assert failure is not None, ended.outcome
    assert (ended.exit_code, failure.code) == (FAILED_EXIT_CODE, code), ended.log
    return failure.message


def save_toy_model(folder: Path, chat: bool) -> None:
    """A random Qwen3 of 30 thousand parameters that writes letters, and now and then ends."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    vocabulary = {token: number for number, token in enumerate([*special, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(special)
    template = CHAT_TEMPLATE if chat else None
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", chat_template=template
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def toy_rows(count: int, *, chat: bool = False) -> list[dict[str, Any]]:
    """Words as prompts, and the letters that the answer should be made of."""
    rows = []
    for number in range(count):
        word = "".join(LETTERS[(number * 7 + place * (number + 3)) % 26] for place in range(2 + number % 4))
        prompt = [{"role": "user", "content": word}] if chat else word
        rows.append({"prompt": prompt, "want": "aeiou" if number % 2 else "abcdefgh"})
    return rows


def trainer_main(path: str) -> int:
    from worker.training.run import main

    sys.argv = ["worker.training.run", path]
    return main()


def faulty_main(fault: str, path: str) -> int:
    from core import failpoints

    failpoints.arm(fault)
    return trainer_main(path)


def _enter(path: str, main: Callable[[str], int]) -> None:
    """Standard output and error go to trainer.log, as the supervisor arranges it; one thread: the models are tiny."""
    log = os.open(f"{path}/trainer.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(path)
    import torch

    torch.set_num_threads(1)
    sys.exit(main(path))


def _reference(step: int) -> CheckpointRef:
    return CheckpointRef(
        job_id=JobId("ftjob-0"), checkpoint_id=CheckpointId("ftckpt-0"), step=step, prefix="", manifest_sha256=""
    )


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return DataRef(
        file_id=FileId("file-1"), filename="rows.jsonl", format=FileFormat.JSONL, sha256=digest, rows=len(rows)
    ).model_dump()


def _pin(run: RunDirectory, name: str, source: str) -> dict[str, Any]:
    run.reward_source(name).write_text(source)
    entry = analyse(source)
    digest = hashlib.sha256(source.encode()).hexdigest()
    return PinnedReward(name=name, source_sha256=digest, entry_point=entry.name, form=entry.form).model_dump()


def _changed(section: str, change: Any) -> Any:
    return {**TOY_SPEC.get(section, {}), **change} if isinstance(change, Mapping) else change
