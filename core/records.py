"""Files of records, read one at a time: bytes of JSONL, CSV or Parquet in, dictionaries of JSON values out.

What cannot be read is yielded as a `Problem` with its line, and reading goes on where the next record can be found.
Which columns a record must have is not known here: that is `core.rows`.
"""

import codecs
import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import InvalidFile, Problem

MAX_LINE_BYTES = 4 * 1024 * 1024
"""Of one record; the memory that reading a text file takes."""
MAX_ROW_GROUP_BYTES = 512 * 1024 * 1024
"""Of one Parquet row group, decompressed: the memory that reading a Parquet file may take."""

_TO_JSONL = "Write one JSON object a line; `jq -c '.[]'` turns an array into that."
_QUOTING = "Quote cells that contain commas, quotes or line breaks, and double the quotes inside them."
_TO_UTF8 = "Save the file as UTF-8, e.g. with `iconv -f WINDOWS-1252 -t UTF-8`."


class FileFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Record:
    line: int
    """1-based line where the record begins; its number in a Parquet file."""
    fields: dict[str, Any]


_SUFFIXES = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
}


def detect_format(filename: str, head: bytes) -> FileFormat:
    """The format of an upload by its first bytes, then by its name; raises `InvalidFile` when neither says."""
    if head.startswith(b"PAR1"):
        return FileFormat.PARQUET
    if by_name := _SUFFIXES.get(Path(filename).suffix.lower()):
        return by_name
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return FileFormat.JSONL
    raise InvalidFile(
        f"Cannot tell the format of {shown(filename)}.",
        param="file",
        fix="Name the file .jsonl, .csv or .parquet; decompress it first if it is compressed.",
    )


def read_records(path: Path, file_format: FileFormat) -> Iterator[Record | Problem]:
    match file_format:
        case FileFormat.JSONL:
            return _jsonl_records(path)
        case FileFormat.CSV:
            return _csv_records(path)
        case FileFormat.PARQUET:
            return _parquet_records(path)


def shown(text: object) -> str:
    """A name from a file as an error may quote it: short, and without characters that cannot be printed."""
    return repr(text)[:64]


def kind_of(value: object) -> str:
    """The JSON word for a value's type, with its article."""
    if value is None:
        return "null"
    words = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return words.get(type(value), f"a {type(value).__name__}")


def _lines(path: Path) -> Iterator[tuple[int, str] | Problem]:
    """Numbered lines with their ends, decoded; the byte order mark of UTF-8 is dropped."""
    offset = number = 0
    with path.open("rb") as file:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            start, offset = offset, offset + len(raw)
            if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
                offset += _skip_line(file)
                cap = f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB"
                yield Problem(f"line {number}", cap, "line_too_long", _TO_JSONL)
                continue
            if start == 0:
                start = len(raw) - len(raw := raw.removeprefix(codecs.BOM_UTF8))
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError as error:
                where = f"not UTF-8 at byte {start + error.start} of the file (0x{raw[error.start]:02x})"
                yield Problem(f"line {number}", where, "not_utf8", _TO_UTF8)


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while raw := file.readline(MAX_LINE_BYTES):
        skipped += len(raw)
        if raw.endswith(b"\n"):
            break
    return skipped


class _DuplicateKeyError(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _DuplicateKeyError(f"the key {shown(key)} stands more than once in one object")
    return fields


def _bounded_int(digits: str) -> int:
    """Cut short: 40 digits are too large already, and Python refuses to parse thousands."""
    return int(digits[:40])


_JSON = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_int=_bounded_int)


def _jsonl_records(path: Path) -> Iterator[Record | Problem]:
    for line in _lines(path):
        if isinstance(line, Problem):
            yield line
        elif text := line[1].rstrip():
            yield _parse_object(line[0], text)


def _parse_object(line: int, text: str) -> Record | Problem:
    where = f"line {line}"
    try:
        value = _JSON.decode(text)
    except json.JSONDecodeError as error:
        return Problem(where, f"not JSON at column {error.colno}: {error.msg}", "invalid_json", _TO_JSONL)
    except _DuplicateKeyError as error:
        return Problem(where, str(error), "duplicate_key", "Keep one of them.")
    except RecursionError:
        return Problem(where, "the JSON is nested too deeply", "invalid_json", "Flatten the value.")
    if not isinstance(value, dict):
        return Problem(where, f"is {kind_of(value)}, not an object", "invalid_json", _TO_JSONL)
    return Record(line, value)


class _UnreadableError(Exception):
    """A line that ends the reading of a CSV file: what follows cannot be told apart."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _CsvFeed:
    """The lines of a CSV file for `csv.reader`; knows where the record being read began, and bounds it."""

    def __init__(self, path: Path) -> None:
        self._lines = _lines(path)
        self.first_line = 0
        self._characters = 0

    def start_record(self) -> None:
        self.first_line = 0
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if isinstance(line, Problem):
            raise _UnreadableError(line)
        number, text = line
        self.first_line = self.first_line or number
        self._characters += len(text)
        if self._characters > MAX_LINE_BYTES:
            message = f"a row is longer than {MAX_LINE_BYTES // 2**20} MiB; is a quote left open?"
            raise _UnreadableError(Problem(f"line {self.first_line}", message, "line_too_long", _QUOTING))
        return text


def _csv_records(path: Path) -> Iterator[Record | Problem]:
    names: list[str] | None = None
    for line, cells in _csv_rows(path):
        if isinstance(cells, Problem):
            yield cells
        elif names is None:
            names = [cell.strip() for cell in cells]
            if problems := _header_problems(line, names):
                yield from problems
                return
        elif len(cells) != len(names):
            message = f"has {len(cells)} cells, but the header names {len(names)} columns"
            yield Problem(f"line {line}", message, "ragged_row", _QUOTING)
        else:
            yield Record(line, dict(zip(names, cells, strict=True)))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str] | Problem]]:
    csv.field_size_limit(MAX_LINE_BYTES)  # of the whole process; 128 KiB by default
    feed = _CsvFeed(path)
    reader = csv.reader(feed, strict=True)
    while True:
        feed.start_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield feed.first_line, Problem(f"line {feed.first_line}", f"not CSV: {error}", "invalid_csv", _QUOTING)
        except _UnreadableError as error:
            yield feed.first_line, error.problem
            return
        else:
            if cells:
                yield feed.first_line, cells


def _header_problems(line: int, names: list[str]) -> list[Problem]:
    where = f"line {line}"
    fix = "The first line of a CSV file names its columns, each once."
    repeated = [name for name, count in Counter(names).items() if count > 1]
    problems = [Problem(where, f"the column {shown(name)} is named twice", "invalid_header", fix) for name in repeated]
    if "" in names:
        problems.append(Problem(where, "a column has no name", "invalid_header", fix))
    return problems


def _parquet_records(path: Path) -> Iterator[Record | Problem]:
    import pyarrow as pa  # noqa: PLC0415 - slow to load, and only Parquet needs it
    from pyarrow import parquet  # noqa: PLC0415

    try:
        with parquet.ParquetFile(path) as file:
            if problems := list(_parquet_problems(file)):
                yield from problems
                return
            number = 0
            for batch in file.iter_batches(batch_size=64):
                for fields in batch.to_pylist():
                    number += 1
                    yield Record(number, fields)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text in it that is not UTF-8
        reason = str(error).replace(str(path), "the file")[:200]
        fix = "Write the file again, and check that the upload was whole."
        yield Problem("line 1", f"not a readable Parquet file: {reason}", "invalid_parquet", fix)


def _parquet_problems(file: Any) -> Iterator[Problem]:
    """What the schema and the sizes say, before any value is read. `file` is a `pyarrow.parquet.ParquetFile`."""
    names = file.schema_arrow.names
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("line 1", f"the column {shown(name)} is named twice", "invalid_header", "Name each column once.")
    for field in file.schema_arrow:
        if not _is_json_type(field.type):
            message = f"the column {shown(field.name)} holds {str(field.type)[:64]} values, which JSON cannot"
            yield Problem("line 1", message, "invalid_type", "Write dates, decimals and bytes as text, or drop them.")
    sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
    if max(sizes, default=0) > MAX_ROW_GROUP_BYTES:
        message = f"a row group takes more than {MAX_ROW_GROUP_BYTES // 2**20} MiB"
        yield Problem("line 1", message, "row_group_too_large", "Write smaller row groups.")


def _is_json_type(kind: Any) -> bool:
    """Whether an Arrow type turns into JSON values: text, numbers, booleans, and lists and structs of those."""
    from pyarrow import types  # noqa: PLC0415

    plain = (types.is_string, types.is_large_string, types.is_string_view, types.is_boolean, types.is_null)
    numbers = (types.is_integer, types.is_float32, types.is_float64)
    if any(test(kind) for test in (*plain, *numbers)):
        return True
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_json_type(kind.value_type)
    if types.is_dictionary(kind):
        return _is_json_type(kind.value_type)
    return types.is_struct(kind) and all(_is_json_type(field.type) for field in kind)
