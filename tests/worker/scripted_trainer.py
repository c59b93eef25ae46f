"""A trainer that plays a script instead of training: all that a supervisor can see of one, without torch.

Started as the trainer's interpreter: `... SCRIPT -m worker.training.run RUN_DIR`. SCRIPT is a JSON file with a list of
actions for each attempt (the last list serves all later ones); an action is a method of `Trainer` and its arguments.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from bench._chaos.samples import make_answer, make_rollout, make_summary
from core.results import Evaluation, TaskResult
from core.status import Stage
from worker.run_directory import (
    STACKS_SIGNAL,
    STOPPED_EXIT_CODE,
    CheckpointSaved,
    EvaluationDone,
    FailureDetail,
    Notice,
    Outcome,
    Pulse,
    RolloutsDone,
    RunDirectory,
    StageStarted,
    StepDone,
)

TASKS = 20
UNKEEPABLE = "\0"
"""NUL: byte-level tokenizers can sample it, and Postgres cannot keep it."""
BASELINE_PASSED = 8
FINAL_PASSED = 16


class Trainer:
    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.plan = run.read_plan()
        self.step = self.plan.resume_step or 0
        self.told_to_stop = False
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, self._remember)
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
        if self.plan.resume_step is not None:
            state = json.loads((run.resume / "state.json").read_text())
            self.notice("state", **state, files=sorted(path.name for path in run.resume.iterdir()))

    def play(self, actions: list[list[Any]]) -> None:
        for name, *arguments in actions:
            options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            getattr(self, name)(*arguments, **options)

    def stage(self, stage: str) -> None:
        self.run.append(StageStarted(at=time.time(), stage=Stage(stage)))

    def notice(self, code: str, **data: Any) -> None:
        self.run.append(Notice(at=time.time(), code=code, message=f"Notice {code}.", data=data))

    def baseline(self) -> None:
        if self.run.read_evaluation("baseline") is not None:
            self.notice("baseline_reused")
        else:
            self._evaluate("baseline", BASELINE_PASSED)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            metrics = {"reward": self.step / 10, "attempt": float(self.plan.attempt), "kl": float("nan")}
            self.run.append(StepDone(at=time.time(), step=self.step, metrics=metrics))
            self.run.append(
                RolloutsDone(at=time.time(), step=self.step, rollouts=(make_rollout(f"step {self.step} {UNKEEPABLE}"),))
            )

    def checkpoint(self, *, is_best: bool = False) -> None:
        """Appears whole, by rename."""
        folder = self.run.checkpoint(self.step)
        draft = folder.with_name(f".{folder.name}")
        draft.mkdir(parents=True)
        (draft / "state.json").write_text(json.dumps({"step": self.step, "attempt": self.plan.attempt}))
        (draft / f"only-in-step-{self.step}.bin").write_bytes(bytes(1000))
        draft.rename(folder)
        metrics = {"reward": self.step / 10}
        self.run.append(CheckpointSaved(at=time.time(), step=self.step, metrics=metrics, is_best=is_best))

    def evaluate(self) -> None:
        self._evaluate(f"step-{self.step}", FINAL_PASSED)

    def show_evaluations(self) -> None:
        names = [name for name in ("baseline", f"step-{self.step}") if self.run.read_evaluation(name) is not None]
        self.notice("evaluations", names=names, upload_s=self.run.read_upload_s())

    def replay(self, step: int, reward: float) -> None:
        """A step with a reward of its own."""
        self.step = step
        metrics = {"reward": reward, "phase/generation_s": time.monotonic()}
        self.run.append(StepDone(at=time.time(), step=step, metrics=metrics))

    def checkpoint_and_wait(self) -> None:
        """Until it is durable: then the supervisor removes the folder."""
        self.checkpoint()
        while self.run.checkpoint(self.step).exists():
            time.sleep(0.02)

    def finish(self) -> NoReturn:
        self._evaluate("final", FINAL_PASSED)
        self.finish_without_evaluation()

    def finish_without_evaluation(self) -> NoReturn:
        self.run.adapter.mkdir()
        (self.run.adapter / "adapter_model.safetensors").write_bytes(b"weights of step %d" % self.step)
        (self.run.adapter / "adapter_config.json").write_text('{"r": 16}')
        self.run.write_outcome(
            Outcome(kind="finished", step=self.step, summary=make_summary(self.step, held_out_rows=TASKS))
        )
        sys.exit(0)

    def finish_probe(self) -> NoReturn:
        self.notice("probed", **(self.plan.probe.model_dump() if self.plan.probe else {}))
        from tests.signal_reports import ALWAYS, MIXED, NEVER, make_report  # loads torch, which takes seconds

        self.run.write_outcome(Outcome(kind="finished", step=0, report=make_report(ALWAYS, NEVER, MIXED)))
        sys.exit(0)

    def serve(self) -> NoReturn:
        """Train until told to stop, then save and leave as a real trainer does."""
        while not self.told_to_stop:
            self.steps(1)
            time.sleep(0.03)
        self.checkpoint()
        self.stop_by_itself()

    def wait_until_told(self) -> NoReturn:
        """Leave with nothing to save, as a probe does."""
        while not self.told_to_stop:
            time.sleep(0.03)
        self.stop_by_itself()

    def stop_by_itself(self) -> NoReturn:
        self.run.write_outcome(Outcome(kind="stopped", step=self.step))
        sys.exit(STOPPED_EXIT_CODE)

    def hang(self) -> NoReturn:
        """Neither work nor listen."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.notice("hanging")
        while True:
            time.sleep(60)

    def pulse(self, phase: str, longest_s: float | None) -> None:
        self.run.write_pulse(Pulse(phase=phase, since=time.monotonic(), longest_s=longest_s, step=self.step))

    def wait_for_file(self, path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.02)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def exit(self, code: int) -> NoReturn:
        sys.exit(code)

    def die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def fail(self, **failure: Any) -> NoReturn:
        self.run.write_outcome(Outcome(kind="failed", step=self.step, failure=FailureDetail(**failure)))
        sys.exit(70)

    def write_line(self, text: str) -> None:
        with self.run.journal.open("a") as journal:
            journal.write(text)

    def show_environment(self) -> None:
        self.notice("environment", variables=dict(os.environ))

    def _evaluate(self, name: str, passed: int) -> None:
        answers = [make_answer(passed=task < passed) for task in range(TASKS)]
        tasks = tuple(
            TaskResult(task=number, prompt_sha256=f"{number:064x}", greedy=answer, sampled=(answer,))
            for number, answer in enumerate(answers)
        )
        self.run.write_evaluation(name, Evaluation(step=self.step, pass_threshold=1.0, tasks=tasks, seconds=0.1))
        self.run.append(EvaluationDone(at=time.time(), name=name, step=self.step))

    def _remember(self, *_: object) -> None:
        self.told_to_stop = True


def main() -> None:
    script, *module, run_dir = sys.argv[1:]
    assert module == ["-m", "worker.training.run"], module
    attempts = json.loads(Path(script).read_text())
    trainer = Trainer(RunDirectory(Path(run_dir)))
    trainer.play(attempts[min(trainer.plan.attempt, len(attempts)) - 1])


if __name__ == "__main__":
    main()
