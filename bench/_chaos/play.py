"""Playing the plan: submissions while there is room, faults when their time has come; then healing, until all is over."""

import random
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from bench._chaos.faults import strike
from bench._chaos.ledger import JobState
from bench._chaos.logs import Broken, FailpointLog
from bench._chaos.plan import Action, FaultKind, Strike, Submit
from bench._chaos.scene import Done, Scene
from bench._chaos.stack import LEASE_TTL_S
from core.status import JobStatus

TICK_S = 0.05
LOOK_S = 0.4
"""Between two looks at the ledger."""
FIND_VICTIM_S = 20.0
"""How long a fault looks for one; then a flushed broker takes its place."""
STUCK_S = 120.0
"""When nothing has moved for so long, what is not over is lost."""
THAW_AFTER_S = (LEASE_TTL_S + 1.0, LEASE_TTL_S + 4.0)


class Play:
    """From the main thread only: it starts processes again."""

    def __init__(self, scene: Scene, *, room: int, seed: int) -> None:
        self._scene = scene
        self._room = room
        """Jobs that may be open at once: fewer than workers, or a takeover would wait for a free one."""
        self._failpoints = FailpointLog(scene.stack.failpoints_log)
        self._chance = random.Random(f"thaw of {seed}")
        self._jobs: list[JobState] = []
        self._looked_at = 0.0
        self._submitted = 0
        self.done: list[Done] = []
        self.frozen: list[Done] = []
        """Those that froze themselves at a failpoint; the target is their process id."""

    @property
    def broken(self) -> Sequence[Broken]:
        return self._failpoints.seen

    def perform(self, plan: Sequence[Action]) -> None:
        struck_at = time.monotonic()
        for action in plan:
            if isinstance(action, Submit):
                self._wait(lambda: self._open() < self._room, timeout_s=STUCK_S)
                self._scene.clients.submit(action)
                self._submitted += 1
            else:
                due_at = struck_at + action.gap_s
                self._wait(lambda at=due_at: time.monotonic() >= at)
                self._strike(action)
                struck_at = time.monotonic()

    def finish(self) -> None:
        """Nothing more is broken on purpose, what lasts is ended, and who is paused goes on."""
        self._scene.heal(now=float("inf"))
        moved_at, before = time.monotonic(), ""
        while self._open() and time.monotonic() < moved_at + STUCK_S:
            self._tick()
            if (state := str(self._jobs)) != before:
                moved_at, before = time.monotonic(), state
            self._resume_paused()

    def settle(self, seconds: float) -> None:
        """Keep the parts running for a moment, until `left_behind` may be asked."""
        self._wait(lambda: False, timeout_s=seconds)

    def _strike(self, action: Strike) -> None:
        give_up_at = time.monotonic() + FIND_VICTIM_S
        while (done := strike(self._scene, action)) is None:
            self._tick()
            if time.monotonic() > give_up_at:
                instead = Strike(action.number, FaultKind.FLUSH_VALKEY, 0.0, action.lasts)
                give_up_at, action = time.monotonic() + FIND_VICTIM_S, instead
        self.done.append(done)
        _say(f"fault {action.number + 1}: {done.kind} {done.target}; {self._open()} jobs open")

    def _wait(self, until: Callable[[], bool], *, timeout_s: float = float("inf")) -> None:
        give_up_at = time.monotonic() + timeout_s
        while not until() and time.monotonic() < give_up_at:
            self._tick()

    def _tick(self) -> None:
        self._scene.stack.tend()
        self._scene.heal(now=time.time())
        self._thaw()
        if time.monotonic() > self._looked_at + LOOK_S:
            self._jobs, self._looked_at = self._scene.ledger.jobs(), time.monotonic()
        time.sleep(TICK_S)

    def _thaw(self) -> None:
        """Who stopped itself at a failpoint goes on once its lease is over."""
        for broken in self._failpoints.read():
            if broken.action == "stop" and psutil.pid_exists(broken.pid):
                until = broken.at + self._chance.uniform(*THAW_AFTER_S)
                self._scene.resume_later([psutil.Process(broken.pid)], at=until)
                self.frozen.append(Done(broken.at, broken.place, str(broken.pid), until=until))

    def _open(self) -> int:
        """Jobs that were submitted and are not over, whether they are recorded yet or not."""
        return self._submitted - sum(job.status.is_terminal for job in self._jobs)

    def _resume_paused(self) -> None:
        for job in self._jobs:
            if job.status is JobStatus.PAUSED:
                self._scene.clients.resume(job.id)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
