"""The negative control: with this folder on PYTHONPATH a lease is matched by the job's id alone, as if nobody fenced.

Python imports a module of this name at every start (the `site` module). An oracle that stays silent then proves
nothing.
"""

from sqlalchemy import ColumnElement

from core.db import leases
from core.db.leases import Lease
from core.db.models import Job


def _match_by_id_alone(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (Job.id == lease.job_id,)


leases._held = _match_by_id_alone
