"""One chaos run: start everything, play the plan, wait for the last job, judge, report."""

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench._chaos import audit, timings
from bench._chaos.clients import Clients
from bench._chaos.compute import Span, overlaps
from bench._chaos.ledger import Ledger
from bench._chaos.logs import supervisors
from bench._chaos.oracle import Evidence, judge
from bench._chaos.plan import Action, FaultKind, make_plan
from bench._chaos.play import Play
from bench._chaos.processes import left_behind
from bench._chaos.report import Report, count_wrong, goals
from bench._chaos.scene import Scene
from bench._chaos.stack import LEASE_TTL_S, SUPERVISOR_POLL_S, Stack
from bench._chaos.trainer import read_compute_log

LEAVE_S = 10.0
"""What the last supervisors have to leave, once every job is over."""
OVERLAP_SLACK_S = 2.0
"""A woken zombie ends its trainer within one poll; with more processes than cores it may need this on top."""


@dataclass(frozen=True, slots=True)
class Options:
    jobs: int
    faults: int
    seed: int
    fencing: bool
    s3: bool
    workers: int
    mean_gap_s: float
    kinds: Sequence[FaultKind]


def run(options: Options, folder: Path) -> Report:
    """Raises StartFailed when the parts do not come up in the first place."""
    began_at = time.monotonic()
    stack = Stack(folder, workers=options.workers, s3=options.s3, fencing=options.fencing)
    try:
        scene = _set_scene(stack, options.seed)
        play = Play(scene, room=max(1, options.workers // 2), seed=options.seed)
        play.perform(_plan(options))
        play.finish()
        scene.clients.close()
        left = left_behind(stack.runs, patience_s=LEAVE_S)
        return _report(options, scene, play, left, seconds=time.monotonic() - began_at)
    finally:
        stack.stop()


def _plan(options: Options) -> list[Action]:
    return make_plan(
        options.seed,
        jobs=options.jobs,
        faults=options.faults,
        kinds=options.kinds,
        mean_gap_s=options.mean_gap_s,
    )


def _set_scene(stack: Stack, seed: int) -> Scene:
    api_key = stack.start()
    ledger = Ledger(stack.servers.open_ledger())
    with ledger.sessions.begin() as session:
        audit.install(session)
    clients = Clients(stack.url, api_key)
    clients.prepare()
    return Scene(stack, stack.servers.open_store(), clients, ledger, random.Random(f"targets of {seed}"))


def _report(options: Options, scene: Scene, play: Play, left: Sequence[str], *, seconds: float) -> Report:
    sessions, heard = scene.ledger.sessions, scene.clients.heard
    whose = supervisors(scene.stack.folder / "logs")
    evidence = _evidence(scene, play, whose, left)
    violations = judge(sessions, scene.store, evidence)
    measured = timings.measure(sessions, timings.Evidence(play.done, play.broken, whose, play.submitted))
    together = overlaps(evidence.computed, evidence.frozen)
    jobs = scene.ledger.jobs()
    kinds = Counter(done.kind for done in play.done)
    kinds.update(f"{broken.action} at {broken.place}" for broken in play.broken)
    return Report(
        seed=options.seed,
        fencing=options.fencing,
        store="SeaweedFS" if options.s3 else "folder",
        seconds=round(seconds, 1),
        jobs=len(jobs),
        statuses=dict(Counter(job.status.value for job in jobs)),
        attempts=sum(job.attempt for job in jobs),
        faults=kinds.total(),
        faults_by_kind=dict(kinds),
        checkpoints=scene.ledger.count_checkpoints(),
        restores=sum(line.kind == "resumed" for line in evidence.computed),
        requests=heard.requests,
        retries=heard.retries,
        wrong=count_wrong(violations),
        violations=[asdict(violation) for violation in violations],
        goals=goals(measured, together, lease_s=LEASE_TTL_S, poll_s=SUPERVISOR_POLL_S),
        folder=str(scene.stack.folder),
    )


def _evidence(scene: Scene, play: Play, whose: Mapping[int, str], left: Sequence[str]) -> Evidence:
    return Evidence(
        submitted=play.submitted,
        heard=scene.clients.heard,
        computed=read_compute_log(scene.stack.compute_log),
        frozen=_frozen(play, whose),
        damaged=frozenset(scene.damaged),
        left_behind=left,
        longest_overlap_s=SUPERVISOR_POLL_S + OVERLAP_SLACK_S,
    )


def _frozen(play: Play, whose: Mapping[int, str]) -> list[Span]:
    """When a supervisor could not end its trainer, because it was itself stopped."""
    spans = [
        Span(done.job_id, done.at, done.until)
        for done in play.done
        if done.kind == FaultKind.FREEZE_SUPERVISOR and done.job_id is not None and done.until is not None
    ]
    spans += [
        Span(whose[int(done.target)], done.at, done.until)
        for done in play.frozen
        if int(done.target) in whose and done.until is not None
    ]
    return spans
