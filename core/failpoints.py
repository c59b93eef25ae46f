"""Named places in the code at which a test may break the process; in production nobody sets the variable.

    PODIUM_FAILPOINTS="checkpoint.files_put=30%kill, publish.committed@2=kill, ship.committed=5%sleep:3"

An entry is `NAME[@HIT]=[PERCENT%]ACTION`: at every hit of the place, or only at its HIT-th in this process; always, or
with a chance. `kill` is SIGKILL to this process, `stop` is SIGSTOP, `sleep:SECONDS` holds the thread. What is done is
first appended to the file that `PODIUM_FAILPOINTS_LOG` names. The idea is that of FreeBSD's fail(9) and etcd's gofail.
"""

import os
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass

VARIABLE = "PODIUM_FAILPOINTS"
LOG_VARIABLE = "PODIUM_FAILPOINTS_LOG"

_ENTRY = re.compile(
    r"(?P<name>[a-z_.]+)(@(?P<hit>\d+))?=((?P<percent>[\d.]+)%)?(?P<action>kill|stop|sleep:(?P<seconds>[\d.]+))"
)


@dataclass(frozen=True, slots=True)
class Fault:
    action: str
    hit: int | None
    """Only this visit of the place, counted from 1."""
    chance: float
    seconds: float


def failpoint(name: str) -> None:
    """A place called `name`, which stands nowhere else. Costs a dictionary lookup when nothing is asked for."""
    fault = _faults.get(name)
    if fault is None:
        return
    _hits[name] += 1
    if fault.hit in (None, _hits[name]) and _chance.random() < fault.chance:
        _log(name, fault)
        _act(fault)


def arm(text: str) -> None:
    """Ask for these faults from now on, in a process that has read its environment already."""
    _faults.clear()
    _faults.update(parse(text))
    _hits.clear()


def parse(text: str) -> dict[str, Fault]:
    """Raises ValueError for what is not an entry: a typo must not silently test nothing."""
    faults = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(f"{entry!r} is no failpoint; write NAME[@HIT]=[PERCENT%]kill|stop|sleep:SECONDS")
        faults[match["name"]] = Fault(
            action=match["action"],
            hit=None if match["hit"] is None else int(match["hit"]),
            chance=1.0 if match["percent"] is None else float(match["percent"]) / 100,
            seconds=float(match["seconds"] or 0),
        )
    return faults


def _act(fault: Fault) -> None:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            time.sleep(fault.seconds)


def _log(name: str, fault: Fault) -> None:
    path = os.environ.get(LOG_VARIABLE)
    if path is None:
        return
    line = f"{time.time():.3f} {os.getpid()} {name} {fault.action}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())  # one write: lines of several processes do not mix (write(2), O_APPEND)
    finally:
        os.close(descriptor)


_faults: dict[str, Fault] = parse(os.environ.get(VARIABLE, ""))
_hits: Counter[str] = Counter()
_chance = random.SystemRandom()
"""Not the generator of `random`, whose state a trainer saves and restores."""
