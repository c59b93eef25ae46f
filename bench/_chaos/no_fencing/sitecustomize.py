"""The negative control: with this folder on PYTHONPATH nobody fences. A lease is matched by the job's id alone, and a
supervisor that wakes behind its lease goes on.

Python imports a module of this name at every start (the `site` module). An oracle that stays silent then proves
nothing. Supervisors are forked by Celery workers, so these alone load what is changed.
"""

# ruff: noqa: PLC0415 - other processes load none of it

import sys


def _do_not_fence() -> None:
    from sqlalchemy import ColumnElement

    from core.db import leases
    from core.db.leases import Lease
    from core.db.models import Job
    from worker.heartbeat import Heartbeat

    def match_by_id_alone(lease: Lease) -> tuple[ColumnElement[bool], ...]:
        return (Job.id == lease.job_id,)

    def never_lose(self: Heartbeat, event: str) -> None:
        pass

    leases._held = match_by_id_alone
    Heartbeat._lose = never_lose  # type: ignore[method-assign]


if "celery" in sys.orig_argv:
    _do_not_fence()
