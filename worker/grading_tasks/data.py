"""The first rows of a data set in the store, without fetching the whole of a large one."""

from contextlib import suppress
from itertools import islice
from pathlib import Path

from core import keys
from core.db.models import File
from core.errors import InvalidFile
from core.rows import FileFormat, Row, read_rows
from core.storage.store import ObjectStore

HEAD_BYTES = 8 * 1024 * 1024
"""More than any sensible number of first rows takes."""


def first_rows(store: ObjectStore, file: File, folder: Path, *, count: int) -> list[Row]:
    """At most `count` rows; fewer where the file has fewer, or where they are huge. Raises errors of the store."""
    assert file.format is not None, "a data set has one"
    path = folder / "rows"
    _fetch_head(store, file, path)
    rows: list[Row] = []
    with suppress(InvalidFile):  # a cut file ends within a row; everything before it is good
        rows.extend(islice(read_rows(path, FileFormat(file.format)), count))
    return rows


def _fetch_head(store: ObjectStore, file: File, path: Path) -> None:
    """A Parquet file is fetched whole: what says where its rows are stands at its end."""
    key = keys.data_file(file.id)
    if file.size_bytes <= HEAD_BYTES or file.format == FileFormat.PARQUET:
        store.get_file(key, path, sha256=file.sha256)
        return
    with path.open("wb") as target:
        for piece in store.open(key, end=HEAD_BYTES):
            target.write(piece)
