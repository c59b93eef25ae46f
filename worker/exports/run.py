"""One attempt at one export: `python -m worker.exports.run JOB_ID TARGET ATTEMPT`, started by `worker.exports.main`.

It follows the ledger until the job is over, and ends when the target has everything; when the job waits or is paused;
when it is told to (SIGTERM); and when a call of the target's client fails, or hangs. A later attempt goes on.
"""

import importlib
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from types import ModuleType

import structlog

from core.db import exports
from core.db.exports import Claim, ClaimLost
from core.db.session import LEDGER_AWAY, Sessions, make_sessions
from core.errors import ServiceError
from core.failpoints import failpoint
from core.ids import JobId
from core.integrations import Integration, TensorboardRun
from core.logging import configure_logging
from core.settings import ExportTarget, Settings, get_settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore
from worker import stop_signals
from worker.exports.artifacts import Artifacts
from worker.exports.feed import Feed, News
from worker.exports.limits import limited
from worker.exports.secrets import keep_secrets
from worker.exports.target import (
    NONE_YET,
    Document,
    ExportFailed,
    ExportPackageMissing,
    RunFacts,
    Stream,
    Target,
)
from worker.parent import die_with_parent

log = structlog.get_logger()

LEASE_CALLS = 1.5
"""The lease, in longest calls: it is renewed between two of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """What an export works with."""

    sessions: Sessions
    store: ObjectStore
    settings: Settings
    stop: threading.Event
    """Set when this process is told to end."""


def lease_s(settings: Settings) -> float:
    return LEASE_CALLS * settings.export_call_s


def run(claim: Claim, place: Place) -> None:
    """Whatever goes wrong is a line in the ledger, and a reason to try again. Raises errors of the ledger itself."""
    feed = Feed(place.sessions, place.store, claim, lease_s=lease_s(place.settings))
    try:
        _export(claim, feed, place)
    except ClaimLost:
        log.warning("export_fenced")
    except LEDGER_AWAY:
        raise
    except ServiceError as error:
        log.warning("export_failed", code=error.code, error=error.message)
        record_failure(claim, error, place.sessions, place.settings)
    except Exception as fault:
        log.exception("export_failed")
        failure = ExportFailed(f"its client gave up with {type(fault).__name__}.")
        record_failure(claim, failure, place.sessions, place.settings)


def record_failure(claim: Claim, error: ServiceError, sessions: Sessions, settings: Settings) -> None:
    """Of a client's own words only the log tells: they may name hosts that are no business of the job's owner."""
    try:
        with sessions.begin() as session:
            retry_s, patience_s = settings.export_retry_s, settings.export_patience_s
            exports.fail(session, claim, error, retry_s=retry_s, patience_s=patience_s)
    except ClaimLost:
        log.info("export_has_another_attempt", job_id=claim.job_id, target=claim.target)


def _export(claim: Claim, feed: Feed, place: Place) -> None:
    integration, facts = feed.begin()
    if facts is None:
        feed.end_without()
        return
    with limited(place.settings.export_call_s):  # clients take seconds to load
        target = make_target(integration, claim, place)
    feed.renew()
    if isinstance(target, Stream):
        _keep_sending(target, facts, feed, place)
    else:
        _keep_written(target, facts, feed, place)


def _keep_sending(stream: Stream, facts: RunFacts, feed: Feed, place: Place) -> None:
    call_s = place.settings.export_call_s
    with limited(call_s):
        last = stream.open(facts)
    log.info("export_opened", where=stream.where, last_step=last)
    while (news := feed.after(last)).conclusion is None:
        if news.points:
            with limited(call_s):
                stream.send(news.points)
            failpoint("export.sent")
            feed.works(stream.where)
            last = news.points[-1].step
        if not news.has_more and not _waits_for_more(news, place, place.settings.export_poll_s):
            with limited(call_s):
                stream.leave()
            feed.leave()
            return
    with limited(call_s):
        stream.finish(news.points, news.conclusion)
    failpoint("export.finished")
    feed.works(stream.where)
    feed.finish(stream.where, news.points[-1].step if news.points else last)


def _keep_written(document: Document, facts: RunFacts, feed: Feed, place: Place) -> None:
    pause_s = min(place.settings.export_refresh_s, place.settings.export_call_s)
    while not document.is_live and feed.is_running():
        if place.stop.wait(pause_s):
            feed.leave()
            return
    written = NONE_YET
    while (news := feed.everything()).conclusion is None:
        if not document.is_live:  # paused or on its way to another worker: there will be one
            feed.leave()
            return
        if news.points and news.points[-1].step != written:
            _write(document, facts, news, place)
            written = news.points[-1].step
            feed.works(document.where)
        if not _waits_for_more(news, place, pause_s):
            feed.leave()
            return
    _write(document, facts, news, place)
    failpoint("export.finished")
    feed.works(document.where)
    feed.finish(document.where, news.points[-1].step if news.points else NONE_YET)


def _write(document: Document, facts: RunFacts, news: News, place: Place) -> None:
    with limited(place.settings.export_call_s):
        document.write(facts, news.points, news.conclusion)


def _waits_for_more(news: News, place: Place, seconds: float) -> bool:
    """Whether there is something to wait for; returns after the wait."""
    return news.is_running and not place.stop.wait(seconds)


def make_target(integration: Integration, claim: Claim, place: Place) -> Target:
    """Load the target's client. Raises `ExportPackageMissing`, `ExportNotConfigured`."""
    module = _load(integration.type)
    if isinstance(integration.run, TensorboardRun):
        document: Document = module.make(Artifacts(place.sessions, place.store, claim))
        return document
    target: Target = module.make(integration.run, place.settings)
    return target


def _load(target: ExportTarget) -> ModuleType:
    """The module named after the target, which imports the client named after it too."""
    try:
        return importlib.import_module(f"worker.exports.{target}")
    except ModuleNotFoundError as error:
        raise ExportPackageMissing(f"the package {error.name} is not installed on the exporter.") from error


def main() -> None:
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is told to the whole terminal; the exporter says when
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    keep_secrets(settings, os.environ)
    job_id, target, attempt = sys.argv[1:]
    claim = Claim(JobId(job_id), ExportTarget(target), int(attempt))
    structlog.contextvars.bind_contextvars(job_id=claim.job_id, target=claim.target, export_attempt=claim.attempt)
    told = stop_signals.remembered(signal.SIGTERM)
    place = Place(make_sessions(settings.database_url, pool_size=1), open_store(settings), settings, told)
    try:
        run(claim, place)
    except LEDGER_AWAY as error:
        log.warning("ledger_unreachable", error=str(error).splitlines()[0])
    logging.shutdown()
    os._exit(0)  # at once: a client's threads and hooks may wait for a server that never answers


if __name__ == "__main__":
    main()
