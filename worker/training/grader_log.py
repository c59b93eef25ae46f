"""What reward code prints, and how often it fails, as notices that a person reads in the job's events."""

import time

from worker.run_directory import Notice, RunDirectory
from worker.training.rewards import Rewards

STEPS_BETWEEN = 10
MOST_CHARS = 4000
"""Of one reward's output in one notice: its end."""


class GraderLog:
    """Tells at once what is printed first, and then at most every `STEPS_BETWEEN` steps what came since."""

    def __init__(self, rewards: Rewards, run: RunDirectory) -> None:
        self._rewards = rewards
        self._run = run
        self._next_step = 0

    def tell(self, step: int, *, now: bool = False) -> None:
        """`step`: optimizer steps taken. `now`: whatever was told lately."""
        if step < self._next_step and not now:
            return
        for reward, (text, lost_bytes) in self._rewards.take_output().items():
            self._next_step = step + STEPS_BETWEEN
            self._run.append(_notice(reward, text, lost_bytes, step))


def _notice(reward: str, text: str, lost_bytes: int, step: int) -> Notice:
    kept = text[-MOST_CHARS:]
    last_line = kept.rstrip().rpartition("\n")[2][:200]
    left_out = {"left_out_chars": len(text) - len(kept), "lost_bytes": lost_bytes}
    data = {"reward": reward, "step": step, "output": kept, **left_out}
    return Notice(at=time.time(), code="grader_output", message=f"Reward `{reward}` wrote: {last_line}", data=data)
