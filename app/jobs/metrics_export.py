"""Step metrics as a table: one row a step, one column a metric, streamed in pages whatever the length of the run."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from core.db import progress
from core.db.models import StepMetrics
from core.db.session import Sessions
from core.ids import JobId

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

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


def metrics_parquet(
    sessions: Sessions, job_id: JobId, *, from_step: int, to_step: int | None, keys: list[str] | None
) -> Iterator[bytes]:
    """As `metrics_csv`; a row group a page, every metric a nullable double."""
    columns = keys or _all_keys(sessions, job_id, from_step, to_step)
    steps = [pa.field(name, pa.int32(), nullable=False) for name in ("step", "attempt")]
    schema = pa.schema([*steps, *(pa.field(name, pa.float64()) for name in columns)])
    outlet = _Outlet()
    with pq.ParquetWriter(pa.PythonFile(outlet, mode="w"), schema) as writer:
        for page in _pages(sessions, job_id, from_step, to_step):
            writer.write_table(_table(page, schema))
            yield outlet.take()
    yield outlet.take()


class _Outlet(io.RawIOBase):
    """A file that keeps nothing but what has not been taken, and knows how far it is: a Parquet footer names places."""

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._place = 0

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        self._written.append(part := bytes(data))
        self._place += len(part)
        return len(part)

    def tell(self) -> int:
        return self._place

    def take(self) -> bytes:
        taken, self._written = b"".join(self._written), []
        return taken


def _table(page: Sequence[StepMetrics], schema: pa.Schema) -> pa.Table:
    rows = [{**row.metrics, "step": row.step, "attempt": row.attempt} for row in page]
    return pa.Table.from_pylist(rows, schema=schema)


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
