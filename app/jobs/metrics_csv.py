"""Step metrics as CSV: one row a step, one column a metric, streamed in pages whatever the length of the run."""

import csv
import io
from collections.abc import Iterator

from core.db import progress
from core.db.models import StepMetrics
from core.db.session import Sessions
from core.ids import JobId

PAGE_STEPS = 1000


def metrics_csv(
    sessions: Sessions, job_id: JobId, *, from_step: int, to_step: int | None, keys: list[str] | None
) -> Iterator[str]:
    """Without `keys`, every metric that any step of the range has: the range is read twice, once for its header."""
    columns = keys or _all_keys(sessions, job_id, from_step, to_step)
    line = io.StringIO()
    writer = csv.DictWriter(line, ["step", "attempt", *columns], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for page in _pages(sessions, job_id, from_step, to_step):
        writer.writerows({**row.metrics, "step": row.step, "attempt": row.attempt} for row in page)
        yield line.getvalue()
        line.seek(0)
        line.truncate()
    yield line.getvalue()


def _all_keys(sessions: Sessions, job_id: JobId, from_step: int, to_step: int | None) -> list[str]:
    keys: dict[str, None] = {}
    for page in _pages(sessions, job_id, from_step, to_step):
        for row in page:
            keys.update(dict.fromkeys(row.metrics))
    return sorted(keys.keys() - {"step", "attempt"})


def _pages(sessions: Sessions, job_id: JobId, from_step: int, to_step: int | None) -> Iterator[list[StepMetrics]]:
    while True:
        with sessions() as session:
            rows = progress.steps(session, job_id, from_step=from_step, to_step=to_step, limit=PAGE_STEPS)
        if rows:
            yield list(rows)
        if len(rows) < PAGE_STEPS:
            return
        from_step = rows[-1].step + 1
