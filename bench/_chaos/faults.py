"""Doing harm. A fault finds its victim among what runs now, strikes, and leaves word of when the harm is to end."""

import signal
import time
from collections.abc import Callable, Mapping

import psutil
import redis

from bench._chaos.damage import damage
from bench._chaos.parts import Network, Part
from bench._chaos.plan import FaultKind, Strike
from bench._chaos.processes import Family
from bench._chaos.scene import Done, Scene
from bench._chaos.stack import LEASE_TTL_S, Stack
from bench._chaos.tcp_proxy import TcpProxy
from core.status import JobStatus
from core.storage.store import StoreError

Fault = Callable[[Scene, Strike], Done | None]
"""None: there is no victim at this moment, try again."""

BEYOND_LEASE_S = (1.5, 4.0)
"""How much longer than a lease a zombie sleeps."""


def strike(scene: Scene, what: Strike) -> Done | None:
    try:
        return _FAULTS[what.kind](scene, what)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None  # it ended by itself a moment ago


def _kill_part(part: Callable[[Stack], Part | None]) -> Fault:
    def fault(scene: Scene, what: Strike) -> Done | None:
        victim = part(scene.stack)
        if victim is None or not victim.is_up:
            return None
        victim.kill()
        return Done(time.time(), what.kind, victim.name)

    return fault


def _kill_dispatcher(scene: Scene, what: Strike) -> Done | None:
    victim = scene.chance.choice(scene.stack.dispatchers)
    return _kill_part(lambda _: victim)(scene, what)


def _signal_one(member: Callable[[Family], psutil.Process | None], number: signal.Signals) -> Fault:
    """To one process of a worker that trains at this moment."""

    def fault(scene: Scene, what: Strike) -> Done | None:
        for family in scene.families():
            victim = member(family)
            if victim is not None and family.trainer is not None:
                at = time.time()
                victim.send_signal(number)
                return Done(at, what.kind, f"{family.worker.part.name} pid {victim.pid}", family.job_id)
        return None

    return fault


def _kill_tree(scene: Scene, what: Strike) -> Done | None:
    family = _training(scene)
    if family is None:
        return None
    at = time.time()
    for process in reversed(family.members):  # Celery first: nobody is left who could give the job back
        process.kill()
    return Done(at, what.kind, family.worker.part.name, family.job_id)


def _freeze(members: Callable[[Family], list[psutil.Process]]) -> Fault:
    def fault(scene: Scene, what: Strike) -> Done | None:
        family = _training(scene)
        if family is None or not scene.may_take_away():
            return None
        at = time.time()
        until = at + LEASE_TTL_S + _between(*BEYOND_LEASE_S, what)
        victims = members(family)
        for process in victims:
            process.suspend()
        scene.resume_later(victims, at=until)
        scene.take_away(family.worker.number, until=until)
        return Done(at, what.kind, family.worker.part.name, family.job_id, until)

    return fault


def _silence_worker(scene: Scene, what: Strike) -> Done | None:
    family = _training(scene)
    if family is None or not scene.may_take_away():
        return None
    at = time.time()
    until = at + LEASE_TTL_S + _between(*BEYOND_LEASE_S, what)
    _silence(scene, family.worker.network.proxies, until=until)
    scene.take_away(family.worker.number, until=until)
    return Done(at, what.kind, family.worker.part.name, family.job_id, until)


def _silence_server(wire: Callable[[Network], TcpProxy | None], *, shortest_s: float, longest_s: float) -> Fault:
    """For everybody."""

    def fault(scene: Scene, what: Strike) -> Done | None:
        wires = [proxy for network in scene.stack.networks if (proxy := wire(network)) is not None]
        at = time.time()
        until = at + _between(shortest_s, longest_s, what)
        _silence(scene, wires, until=until)
        return Done(at, what.kind, "everybody", until=until) if wires else None

    return fault


def _cut(scene: Scene, what: Strike) -> Done:
    """Every connection of one machine, or of one server."""
    networks = scene.stack.networks
    server = scene.chance.choice(["postgres", "valkey", "store", "machine"])
    if server == "machine":
        number = scene.chance.randrange(len(networks))
        proxies, target = networks[number].proxies, f"machine {number}"
    else:
        wires = [getattr(network, server) for network in networks]
        proxies, target = [wire for wire in wires if wire is not None], server
    for proxy in proxies:
        proxy.cut()
    return Done(time.time(), what.kind, target)


def _flush(scene: Scene, what: Strike) -> Done | None:
    try:
        scene.stack.servers.flush_valkey()
    except redis.RedisError:
        return None
    return Done(time.time(), what.kind, "valkey")


def _damage_checkpoint(scene: Scene, what: Strike) -> Done | None:
    """Then end the trainer, so that somebody has to load it."""
    family = _training(scene)
    job = next((job for job in scene.ledger.jobs() if family is not None and job.id == family.job_id), None)
    checkpoint = scene.ledger.newest_checkpoint(job.id) if job is not None else None
    if family is None or family.trainer is None or checkpoint is None:
        return None
    scene.damaged.add(checkpoint.id)
    try:
        done = damage(scene.store, checkpoint, scene.chance)
    except StoreError:
        return None
    at = time.time()
    family.trainer.kill()
    return Done(at, what.kind, done, family.job_id)


def _cancel(scene: Scene, what: Strike) -> Done | None:
    running = [job for job in scene.ledger.jobs() if job.status in (JobStatus.RUNNING, JobStatus.QUEUED)]
    if not running:
        return None
    job = scene.chance.choice(running)
    scene.clients.cancel(job.id)
    return Done(time.time(), what.kind, job.status, job.id)


def _pause(scene: Scene, what: Strike) -> Done | None:
    running = [job for job in scene.ledger.jobs() if job.status in (JobStatus.RUNNING, JobStatus.QUEUED)]
    if not running:
        return None
    job, at = scene.chance.choice(running), time.time()
    until = at + _between(0.3, 5.0, what)
    scene.clients.pause(job.id)
    scene.later(until, lambda: scene.clients.resume(job.id))
    return Done(at, what.kind, job.status, job.id, until)


def _training(scene: Scene) -> Family | None:
    return next((family for family in scene.families() if family.trainer is not None), None)


def _silence(scene: Scene, proxies: list[TcpProxy], *, until: float) -> None:
    for proxy in proxies:
        proxy.fall_silent()
        scene.later(until, proxy.speak)


def _between(least: float, most: float, what: Strike) -> float:
    return least + (most - least) * what.lasts


def _all(family: Family) -> list[psutil.Process]:
    return family.members


def _supervisor(family: Family) -> list[psutil.Process]:
    return [family.supervisor] if family.supervisor is not None else []


_FAULTS: Mapping[FaultKind, Fault] = {
    FaultKind.KILL_API: _kill_part(lambda stack: stack.api),
    FaultKind.KILL_DISPATCHER: _kill_dispatcher,
    FaultKind.KILL_VALKEY: _kill_part(lambda stack: stack.servers.valkey),
    FaultKind.KILL_POSTGRES: _kill_part(lambda stack: stack.servers.postgres),
    FaultKind.KILL_STORE: _kill_part(lambda stack: stack.servers.store),
    FaultKind.FLUSH_VALKEY: _flush,
    FaultKind.KILL_CELERY_MAIN: _signal_one(lambda family: family.main, signal.SIGKILL),
    FaultKind.KILL_POOL_CHILD: _signal_one(lambda family: family.pool_child, signal.SIGKILL),
    FaultKind.KILL_SUPERVISOR: _signal_one(lambda family: family.supervisor, signal.SIGKILL),
    FaultKind.KILL_TRAINER: _signal_one(lambda family: family.trainer, signal.SIGKILL),
    FaultKind.KILL_GRADER: _signal_one(lambda family: family.grader, signal.SIGKILL),
    FaultKind.TERMINATE_WORKER: _signal_one(lambda family: family.main, signal.SIGTERM),
    FaultKind.TERMINATE_SUPERVISOR: _signal_one(lambda family: family.supervisor, signal.SIGTERM),
    FaultKind.KILL_WORKER_TREE: _kill_tree,
    FaultKind.FREEZE_WORKER: _freeze(_all),
    FaultKind.FREEZE_SUPERVISOR: _freeze(_supervisor),
    FaultKind.SILENCE_WORKER: _silence_worker,
    FaultKind.SILENCE_POSTGRES: _silence_server(lambda network: network.postgres, shortest_s=0.5, longest_s=3.0),
    FaultKind.SILENCE_VALKEY: _silence_server(lambda network: network.valkey, shortest_s=1.0, longest_s=8.0),
    FaultKind.SILENCE_STORE: _silence_server(lambda network: network.store, shortest_s=1.0, longest_s=8.0),
    FaultKind.CUT_CONNECTIONS: _cut,
    FaultKind.DAMAGE_CHECKPOINT: _damage_checkpoint,
    FaultKind.CANCEL: _cancel,
    FaultKind.PAUSE: _pause,
}
