"""The processes below a worker, by what they are: found in the process table, as an operator would."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench._chaos.stack import Worker
from bench._chaos.trainer import GRADER_MARK

SUPERVISOR_MARK = "worker.supervisor"
TRAINER_MARK = "bench._chaos.trainer"


@dataclass(frozen=True, slots=True)
class Family:
    """One worker's processes at one moment. Those that are not there are None."""

    worker: Worker
    main: psutil.Process
    pool_child: psutil.Process | None
    supervisor: psutil.Process | None
    job_id: str | None
    """Of the supervisor."""
    trainer: psutil.Process | None
    grader: psutil.Process | None

    @property
    def members(self) -> list[psutil.Process]:
        """The youngest first."""
        found = (self.grader, self.trainer, self.supervisor, self.pool_child, self.main)
        return [process for process in found if process is not None]


def families_of(workers: Iterable[Worker]) -> list[Family]:
    """Of the workers that are up; one look at the process table for all of them."""
    table = _process_table()
    return [_family(worker, table) for worker in workers if worker.part.is_up]


def left_behind(runs: Path, *, patience_s: float) -> list[str]:
    """Trainers and graders that are alive although every job is over and their supervisors had time to leave."""
    deadline = time.monotonic() + patience_s
    while (found := list(_of_runs(runs))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _family(worker: Worker, table: Mapping[int, Sequence[psutil.Process]]) -> Family:
    main = psutil.Process(worker.part.child.pid)
    below = [(process, _words(process.info["cmdline"])) for process in _descendants(main.pid, table)]
    supervisor = _first(below, SUPERVISOR_MARK)
    return Family(
        worker=worker,
        main=main,
        pool_child=next((child for child in table.get(main.pid, ()) if child.info["cmdline"]), None),
        supervisor=supervisor,
        job_id=next((line[-1] for process, line in below if process == supervisor), None),
        trainer=_first(below, TRAINER_MARK),
        grader=_first(below, GRADER_MARK),
    )


def _process_table() -> Mapping[int, Sequence[psutil.Process]]:
    """Children by their parent's id. psutil would read the whole table again for each parent."""
    children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid", "cmdline"]):
        children[process.info["ppid"]].append(process)
    return children


def _descendants(pid: int, table: Mapping[int, Sequence[psutil.Process]]) -> Iterator[psutil.Process]:
    for child in table.get(pid, ()):
        yield child
        yield from _descendants(child.pid, table)


def _first(below: Sequence[tuple[psutil.Process, list[str]]], mark: str) -> psutil.Process | None:
    return next((process for process, line in below if mark in line), None)


def _words(command_line: Sequence[str] | None) -> list[str]:
    """A supervisor's is one argument, with empty ones behind it: it was set by a process that is forked."""
    return " ".join(command_line or ()).split()


def _of_runs(runs: Path) -> Iterator[str]:
    """A trainer and a grader both have their run directory as the last argument."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            line = process.cmdline()
            if line and line[-1].startswith(f"{runs}/") and process.status() != psutil.STATUS_ZOMBIE:
                yield f"{process.pid} {' '.join(line[-3:])}"
