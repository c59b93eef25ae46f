"""Rewards called in this process, as the grading process calls them; rollouts to grade."""

from typing import Any

from core.reward_source import RewardForm, analyse
from worker.grading.child import execute
from worker.grading.grades import Grade, Rollout
from worker.grading.signatures import call

PRELUDE = """
import ctypes, os, signal, sys, time
def everywhere(data):
    for fd in range(3, 256):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


def grade(
    source: str,
    *rollouts: Rollout,
    step: int = 0,
    form: RewardForm | None = None,
    item_deadline_s: float | None = None,
) -> list[Grade]:
    entry = analyse(source, form=form)
    function = vars(execute(source))[entry.name]
    return call(function, entry, rollouts, step, item_deadline_s=item_deadline_s)


def rollout(completion: str = "2", prompt: Any = "1+1?", ids: tuple[int, ...] = (5, 6), **columns: Any) -> Rollout:
    return Rollout(prompt, completion, list(ids), columns)


def values(grades: list[Grade]) -> list[float | None]:
    return [one.value for one in grades]


def outcomes(grades: list[Grade]) -> list[str]:
    return [one.outcome.value for one in grades]


def on(word: str, statement: str, form: str = "per_sample") -> str:
    """A reward that runs `statement` for completions that hold `word`, and scores the length of the others."""
    if form == "trl":
        return f"""
{PRELUDE}
def f(completions):
    for completion in completions:
        if {word!r} in completion:
            {statement}
    return [len(completion) for completion in completions]
"""
    return f"""
{PRELUDE}
def reward(completion):
    if {word!r} in completion:
        {statement}
    return len(completion)
"""
