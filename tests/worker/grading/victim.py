"""A grader's client that does as it is told: a program, so that it can be run as another user than the tests'.

    python -m tests.worker.grading.victim FACTS

FACTS: what attacks aim at, as JSON. One request a line on standard input, one answer a line on standard output.
"""

import ctypes
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from core.errors import ServiceError
from worker.grading.client import Grader, Rollout
from worker.grading.memory import tree

ATTACKS = Path(__file__).with_name("attacks")
SUBREAPER = 36
TENANT = """
from pathlib import Path

def reward(completion, facts):
    file = Path(facts["tenant_file"])
    if completion == "move in":
        file.write_text("of a tenant")
    return float(file.read_text() == "of a tenant" and list(Path("/tmp").iterdir()) == [file])
"""
PATIENT = {"batch_deadline_s": 20.0, "item_deadline_s": 10.0, "load_deadline_s": 20.0}
HURRIED = {"batch_deadline_s": 1.2, "item_deadline_s": 0.4, "load_deadline_s": 20.0}


class Victim:
    """A grader or two for each file of attacks: after an attack, the next grading is the same grader's."""

    def __init__(self, facts: dict) -> None:
        self._facts = facts
        self._graders: dict[tuple[str, bool], Grader] = {}
        self._tenant: Grader | None = None

    def attack(self, theme: str, name: str, *, hurried: bool) -> dict:
        """`hurried`: with deadlines for what does not end by itself."""
        grader = self._graders.get((theme, hurried))
        if grader is None:
            grader = Grader(ATTACKS / f"{theme}.py", **HURRIED if hurried else PATIENT)
            self._graders[theme, hurried] = grader.__enter__()
        before = self._look_at_tenant("move in" if self._tenant is None else "look")
        restarts = grader.restarts
        grades = [asdict(grade) for grade in grader.grade([self._rollout("fine"), self._rollout(name)])]
        (after,) = grader.grade([self._rollout("fine")])
        return {
            "grades": grades,
            "after": asdict(after),
            "tenant": [before, self._look_at_tenant("look")],
            "restarts": grader.restarts - restarts,
            "pid": grader.pid,
            "output_bytes": len(grader.output.text()),
        }

    def _look_at_tenant(self, completion: str) -> float | None:
        """1 while the other sandbox, which stays up, has its file in its own /tmp and nothing else there."""
        if self._tenant is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "tenant.py")
                path.write_text(TENANT)
                self._tenant = Grader(path, **PATIENT).__enter__()
        (grade,) = self._tenant.grade([self._rollout(completion)])
        assert self._tenant.restarts == 0
        return grade.value

    def load(self, source: str, *, load_deadline_s: float = 20.0) -> dict:
        """Load a reward that does its harm there; says what came of it."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "reward.py")
            path.write_text(source)
            try:
                with Grader(path, load_deadline_s=load_deadline_s) as grader:
                    (grade,) = grader.grade([self._rollout("fine")])
                    return {"grade": asdict(grade)}
            except ServiceError as error:
                return {"code": error.code, "message": error.message}

    def grade(self, source: str, completions: list[str]) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "reward.py")
            path.write_text(source)
            with Grader(path, **PATIENT) as grader:
                return {"grades": [asdict(grade) for grade in grader.grade(list(map(self._rollout, completions)))]}

    def processes(self) -> dict:
        """All below this one, dead ones too."""
        return {"pids": list(tree(os.getpid()))}

    def close(self) -> dict:
        """End all sandboxes; which processes are left, dead ones too."""
        for grader in (*self._graders.values(), self._tenant):
            if grader is not None:
                grader.close()
        self._graders.clear()
        self._tenant = None
        return self.processes()

    def _rollout(self, completion: str) -> Rollout:
        return Rollout("", completion, [], {"facts": {**self._facts, "client_pid": os.getpid()}})


def main() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # orphans come here, and nobody buries them: they are counted
    victim = Victim(json.loads(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # logs
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(victim, request.pop("do"))(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
