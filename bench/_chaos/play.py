"""Playing the plan: submissions while there is room, faults when their time has come; then healing, to the end."""

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
from core.ids import JobId
from core.status import JobStatus

TICK_S = 0.05
LOOK_S = 0.4
"""Between two looks at the ledger."""
FIND_VICTIM_S = 20.0
"""How long a fault looks for one; then a flushed broker takes its place."""
FIND_AGAIN_S = 0.3
LONGEST_PAUSE_S = 6.0
STUCK_S = 180.0
"""When no job has ended for so long, what is open is lost."""
THAW_AFTER_S = (LEASE_TTL_S + 1.0, LEASE_TTL_S + 4.0)


class Play:
    """From the main thread only: it starts processes again."""

    def __init__(self, scene: Scene, *, room: int, seed: int) -> None:
        self._scene = scene
        self._room = room
        """Jobs that may be open at once: half as many as workers, or a takeover would wait for one that is free."""
        self._failpoints = FailpointLog(scene.stack.failpoints_log)
        self._chance = random.Random(f"thaw of {seed}")
        self._jobs: list[JobState] = []
        self._looked_at = 0.0
        self._paused_since: dict[JobId, float] = {}
        self.submitted: list[Submit] = []
        self.done: list[Done] = []
        self.frozen: list[Done] = []
        """Those that froze themselves at a failpoint; the target is their process id."""

    @property
    def broken(self) -> Sequence[Broken]:
        return self._failpoints.seen

    def perform(self, plan: Sequence[Action]) -> None:
        """Ends early when nothing moves any more."""
        struck_at = time.monotonic()
        for action in plan:
            if isinstance(action, Submit):
                if not self._wait_for_an_end(lambda: self._open() < self._room):
                    return
                self._scene.clients.submit(action)
                self.submitted.append(action)
            else:
                self._wait_until(struck_at + action.gap_s)
                self._strike(action)
                struck_at = time.monotonic()

    def finish(self) -> None:
        """Nothing more is broken on purpose, what lasts is ended, and who is paused goes on."""
        self._scene.heal(now=float("inf"))
        self._wait_for_an_end(self._is_over)

    def _wait_for_an_end(self, until: Callable[[], bool]) -> bool:
        """False when for a long time no job has ended."""
        ended_at, open_before = time.monotonic(), self._open()
        while not until():
            self._tick()
            if (now_open := self._open()) < open_before:
                ended_at, open_before = time.monotonic(), now_open
            if time.monotonic() > ended_at + STUCK_S:
                _say(f"stuck: {now_open} jobs are open")
                return False
        return True

    def _is_over(self) -> bool:
        """Every job, and what the clients still ask for."""
        return self._open() == 0 and not self._scene.clients.are_busy

    def _strike(self, action: Strike) -> None:
        give_up_at = time.monotonic() + FIND_VICTIM_S
        while (done := strike(self._scene, action)) is None:
            self._wait_until(time.monotonic() + FIND_AGAIN_S)
            if time.monotonic() > give_up_at:
                instead = Strike(action.number, FaultKind.FLUSH_VALKEY, 0.0, action.lasts)
                give_up_at, action = time.monotonic() + FIND_VICTIM_S, instead
        self.done.append(done)
        _say(f"fault {action.number + 1}: {done.kind} {done.target}; {self._open()} jobs open")

    def _wait_until(self, due_at: float) -> None:
        while time.monotonic() < due_at:
            self._tick()

    def _tick(self) -> None:
        self._scene.stack.tend()
        self._scene.heal(now=time.time())
        self._thaw()
        if time.monotonic() > self._looked_at + LOOK_S:
            self._jobs, self._looked_at = self._scene.ledger.jobs(), time.monotonic()
            self._resume_forgotten()
        time.sleep(TICK_S)

    def _resume_forgotten(self) -> None:
        """A resume that overtook its pause was refused, and the job would stay paused for ever."""
        now, paused = time.monotonic(), {job.id for job in self._jobs if job.status is JobStatus.PAUSED}
        self._paused_since = {job_id: self._paused_since.get(job_id, now) for job_id in paused}
        for job_id in [job_id for job_id, since in self._paused_since.items() if now > since + LONGEST_PAUSE_S]:
            self._scene.clients.resume(job_id)
            self._paused_since[job_id] = now

    def _thaw(self) -> None:
        """Who stopped itself at a failpoint goes on once its lease is over."""
        for broken in self._failpoints.read():
            if broken.action == "stop" and psutil.pid_exists(broken.pid):
                until = broken.at + self._chance.uniform(*THAW_AFTER_S)
                self._scene.resume_later([psutil.Process(broken.pid)], at=until)
                self.frozen.append(Done(broken.at, broken.place, str(broken.pid), until=until))

    def _open(self) -> int:
        """Jobs that were submitted and are not over, whether they are recorded yet or not."""
        over = sum(job.status.is_terminal for job in self._jobs)
        return len(self.submitted) - over - len(self._scene.clients.heard.never_taken)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
