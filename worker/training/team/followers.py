"""The other processes of a run, as its first one starts and watches them.

They get what `accelerate launch` and torchrun would give them, and are no launcher's: torchrun's agent puts each
process into a session of its own, turns their exit codes into its own, and takes no pause; the supervisor would have
to learn all that anew. So the process that it starts, signals and waits for is the first of the team, and the others
are its children: in its session, killed with it, and its end is the end of all.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from core.status import StatusReason
from worker.parent import killed_with_parent, parent_environment
from worker.run_directory import FAILED_EXIT_CODE, FailureDetail, Outcome, RunDirectory
from worker.training.phases import Phase

HOST = "127.0.0.1"
FOLLOW_MODULE = "worker.training.team.follow"
CHECKOUT = Path(__file__).resolve().parents[3]
NOTICE_S = 5.0
"""How long after a crash of the first process another one's death may still come to light as its cause."""
UNWIND_S = 15.0
"""For the first process to end by itself once another one has; in some collectives it would wait for ever."""


@dataclass(frozen=True, slots=True)
class Follower:
    rank: int
    process: subprocess.Popen[bytes]
    words: IO[bytes]
    """What it says of its failure; ends with it."""


class Followers:
    def __init__(self, run: RunDirectory, count: int, *, unwind_s: float = UNWIND_S) -> None:
        """Starts `count` of them, from the thread with which they are to die."""
        self.count = count
        self._unwind_s = unwind_s
        self.listener: socket.socket | None = None
        self._run = run
        self._followers: list[Follower] = []
        self._failure: FailureDetail | None = None
        self._lock = threading.Lock()
        self._is_lost = threading.Event()
        self._is_over = threading.Event()
        if count:
            self._start()

    @property
    def size(self) -> int:
        """Of the whole team."""
        return self.count + 1

    def explain(self, outcome: Outcome) -> Outcome:
        """Where this process crashed because another had: the failure of that one."""
        failure = outcome.failure
        if not self.count or failure is None or failure.reason is not StatusReason.TRAINER_CRASHED:
            return outcome
        self._is_lost.wait(NOTICE_S)
        return outcome.model_copy(update={"failure": self._failure or failure})

    def end(self) -> None:
        """They have nothing of their own to save."""
        self._is_over.set()
        for follower in self._followers:
            follower.process.kill()
            follower.process.wait()
        if self.listener is not None:
            self.listener.close()

    def _start(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        os.environ.update(meeting_place(self.listener.getsockname()[1], self.size), **rank_environment(0))
        for rank in range(1, self.size):
            follower = _start_follower(self._run, rank)
            self._followers.append(follower)
            threading.Thread(target=self._watch, args=(follower,), name=f"rank-{rank}", daemon=True).start()

    def _watch(self, follower: Follower) -> None:
        failure = _failure(follower)
        with self._lock:
            if self._is_over.is_set() or self._is_lost.is_set():
                return
            self._failure = failure
            self._is_lost.set()
        while not self._is_over.wait(self._unwind_s):
            pulse = self._run.read_pulse()
            if pulse is not None and pulse.phase == Phase.CHECKPOINT:
                continue  # it needs nobody else for that, and what it saves need not be done again
            self._run.write_outcome(Outcome(kind="failed", step=0 if pulse is None else pulse.step, failure=failure))
            os._exit(FAILED_EXIT_CODE)


@contextmanager
def followers_of(run: RunDirectory, count: int) -> Iterator[Followers]:
    followers = Followers(run, count)
    try:
        yield followers
    finally:
        followers.end()


def meeting_place(port: int, size: int) -> dict[str, str]:
    """What is the same for all. Everything stays on this machine, so nothing listens outside it."""
    cores = len(os.sched_getaffinity(0))
    return {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch's word for: somebody else has opened MASTER_PORT already
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // size))),
    }


def rank_environment(rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)}


def _start_follower(run: RunDirectory, rank: int) -> Follower:
    """Its standard output and error are this process's: the run's log."""
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            killed_with_parent(Path(sys.executable), "-m", FOLLOW_MODULE, str(run.path), str(theirs)),
            cwd=CHECKOUT,
            env=os.environ | rank_environment(rank) | parent_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs],
        )
    finally:
        os.close(theirs)
    return Follower(rank, process, os.fdopen(ours, "rb"))


def _failure(follower: Follower) -> FailureDetail:
    """Waits for it. What it says comes long before its end, which takes torch seconds on a busy machine."""
    said = follower.words.read()
    try:
        return FailureDetail.model_validate_json(said)
    except ValidationError:
        code = follower.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return FailureDetail(
            reason=StatusReason.TRAINER_CRASHED,
            code="trainer_crashed",
            message=f"The process of rank {follower.rank} ended with {how}.",
            fix="Signal 9 usually means that the machine ran out of memory; the end of trainer.log may say more.",
            retryable=True,
        )
