"""Removes from the store what nobody owns: torn and given up checkpoints, uploads that never ended, orphans.
And from the ledger what nobody will ask for again: old idempotency keys and grading tasks.

What is listed is only suspected. An object must be old, by the store's own clock, and the ledger is asked about each
one just before it is deleted (`core.db.orphans` says why its answer cannot be overtaken).
"""

import threading
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

import structlog

from core import keys
from core.db import checkpoints, grading_tasks, idempotency, orphans, reward_probes
from core.db.session import Sessions
from core.failpoints import failpoint
from core.keys import CheckpointPlace, ExportPlace, Place
from core.settings import Settings
from core.storage.connect import open_store
from core.storage.store import ObjectInfo, ObjectStore

log = structlog.get_logger()

IDEMPOTENCY_KEPT_S = 7 * 86400.0
"""A client that repeats a request does so within seconds or, after an outage, days."""
GRADING_TASKS_KEPT_S = 86400.0
"""Whoever waited for the answer has long read it; a day is for people who look into what happened."""


@dataclass(frozen=True, slots=True)
class Collected:
    """How many of each were removed."""

    checkpoints: int = 0
    given_up: int = 0
    """Checkpoints of jobs that are over, which only a branch had needed: their objects go with the next of these."""
    publications: int = 0
    """Attempts and exports that uploaded artifacts, and never showed them."""
    files: int = 0
    uploads: int = 0
    probes: int = 0
    idempotency_keys: int = 0
    grading_tasks: int = 0


def tend(sessions: Sessions, settings: Settings, stop: threading.Event) -> None:
    """Collect now, and every `gc_every_s`, until `stop`. What fails is logged, and tried again the next time."""
    store: ObjectStore | None = None
    while True:
        try:
            store = store or open_store(settings)  # an S3 client takes a quarter of a second to make
            collect(sessions, store, settings)
        except Exception:
            log.exception("collection_failed", again_in_s=settings.gc_every_s)
        if stop.wait(settings.gc_every_s):
            return


def collect(sessions: Sessions, store: ObjectStore, settings: Settings) -> Collected:
    """One round. Removes nothing while another process is at it. Raises errors of the ledger and the store."""
    with orphans.only_collector(sessions) as alone:
        if not alone:
            log.info("collection_runs_elsewhere")
            return Collected()
        with sessions.begin() as session:
            keys_forgotten = idempotency.forget(session, older_than_s=IDEMPOTENCY_KEPT_S)
            reward_probes.forget_failed(session, older_than_s=GRADING_TASKS_KEPT_S)
            tasks_forgotten = grading_tasks.forget(session, older_than_s=GRADING_TASKS_KEPT_S)
        given_up = _give_up_for_branches(sessions)
        removed = _Round(sessions, store, settings.gc_min_age_s).run()
        collected = replace(removed, given_up=given_up, idempotency_keys=keys_forgotten, grading_tasks=tasks_forgotten)
    log.info("collected", **asdict(collected))
    return collected


def _give_up_for_branches(sessions: Sessions) -> int:
    """What jobs that are over kept for their branches alone; how many. Each for itself: rows are locked meanwhile, and
    where one cannot be had the others need not wait.
    """
    with sessions() as session:
        parents = checkpoints.ended_parents(session)
    given_up = 0
    for job_id, keep in parents:
        with sessions.begin() as session:
            given_up += len(checkpoints.collect_superseded(session, job_id, keep=keep))
    return given_up


class _Round:
    def __init__(self, sessions: Sessions, store: ObjectStore, min_age_s: float) -> None:
        self._sessions = sessions
        self._store = store
        self._min_age_s = min_age_s
        self._before = store.clock() - timedelta(seconds=min_age_s)

    def run(self) -> Collected:
        places = _newest(self._store.list(keys.JOBS))
        removed = [place for place, modified_at in places.items() if self._remove_place(place, modified_at)]
        checkpoints = sum(isinstance(place, CheckpointPlace) for place in removed)
        return Collected(
            checkpoints=checkpoints,
            publications=len(removed) - checkpoints,
            files=0 if self._is_anothers(places.keys()) else self._remove_files(),
            uploads=self._store.abort_uploads(self._min_age_s),
            probes=self._remove_probes(),
        )

    def _remove_place(self, place: Place, modified_at: datetime) -> bool:
        if modified_at > self._before or not self._is_orphaned(place):
            return False
        failpoint("janitor.decided")
        self._store.delete_prefix(place.prefix)
        log.info("orphan_removed", prefix=place.prefix)
        return True

    def _is_orphaned(self, place: Place) -> bool:
        with self._sessions.begin() as session:
            if isinstance(place, CheckpointPlace):
                return orphans.is_orphaned_checkpoint(session, place, evidence_s=self._min_age_s)
            if isinstance(place, ExportPlace):
                return orphans.is_orphaned_export(session, place)
            return orphans.is_orphaned_publication(session, place)

    def _is_anothers(self, places: Collection[Place]) -> bool:
        """A file that we do not know could be another ledger's, if there are jobs or attempts that we do not know."""
        with self._sessions.begin() as session:
            unknown = [place.prefix for place in orphans.unknown(session, places)]
        if unknown:
            fix = "Give each database a store, or a prefix, of its own."
            log.error("store_is_another_ledgers_too", places=len(unknown), example=min(unknown), fix=fix)
        return bool(unknown)

    def _remove_files(self) -> int:
        return sum(self._remove_file(info) for info in self._store.list(keys.DATA_FILES))

    def _remove_file(self, info: ObjectInfo) -> bool:
        file_id = keys.data_file_of(info.key)
        if file_id is None or info.modified_at > self._before:
            return False
        with self._sessions.begin() as session:
            if not orphans.is_orphaned_file(session, file_id):
                return False
        self._store.delete(info.key)
        log.info("orphan_removed", key=info.key)
        return True

    def _remove_probes(self) -> int:
        old = [info.key for info in self._store.list(keys.PROBES) if info.modified_at <= self._before]
        for key in old:
            self._store.delete(key)
        return len(old)


def _newest(objects: Iterable[ObjectInfo]) -> dict[Place, datetime]:
    """The places under which the objects lie, each with the time of its newest: an upload that goes on is young."""
    newest: dict[Place, datetime] = {}
    for info in objects:
        if (place := keys.place_of(info.key)) is not None:
            newest[place] = max(info.modified_at, newest.get(place, info.modified_at))
    return newest
