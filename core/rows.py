"""Data sets: a JSONL, CSV or Parquet file in; prompts, and the columns that rewards read, out.

The prompt of a row is the first of these columns that it has:

    prompt      text, or a list of chat messages (TRL's prompt-only form)
    messages    a list of chat messages that ends with the user's (OpenAI's reinforcement form)
    question    text (GSM8K)
    problem     text (MATH)

Every other column reaches the reward. `messages`, `question` and `problem` do too, under their own names, because
rewards written for such data read them there; `prompt` reaches every reward form by itself. CSV cells stay text.
"""

import difflib
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from core.chat import ChatMessage
from core.errors import InvalidFile, Problem
from core.records import FileFormat, Record, detect_format, kind_of, read_records, shown

__all__ = [
    "MAX_COLUMNS",
    "MAX_NESTING",
    "PROMPT_COLUMNS",
    "ROLES",
    "FileFormat",
    "FileReport",
    "PromptKind",
    "Row",
    "canonical_prompt_sha256",
    "detect_format",
    "inspect_file",
    "read_rows",
]

MAX_COLUMNS = 512
"""Different column names in one file."""
MAX_NESTING = 32
PROMPT_COLUMNS = ("prompt", "messages", "question", "problem")
ROLES = ("system", "user", "assistant", "developer", "tool")

_TOO_MANY_COLUMNS = Problem(
    "file",
    f"the rows have more than {MAX_COLUMNS} different columns",
    "too_many_columns",
    "Put open-ended keys into one column, as an object.",
)
_EMPTY = Problem("line 1", "the file has no rows", "empty_file", "Upload at least one row.")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class PromptKind(StrEnum):
    """A data set has one."""

    TEXT = "text"
    MESSAGES = "messages"


_KINDS: Mapping[type, PromptKind] = {str: PromptKind.TEXT, list: PromptKind.MESSAGES}
_IN_WORDS: Mapping[PromptKind, str] = {PromptKind.TEXT: "text", PromptKind.MESSAGES: "a list of messages"}

_Fault = tuple[str, str, str]
"""Path inside the value, message, fix."""


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    """1-based line where the row begins; the row's number in a Parquet file."""
    prompt: str | list[ChatMessage]
    columns: Mapping[str, Any]
    """What the reward may read: JSON values."""


@dataclass(frozen=True, slots=True)
class FileReport:
    rows: int
    """Rows that can be used."""
    distinct_prompts: int
    """Different prompts among them, by `canonical_prompt_sha256`."""
    prompt_kind: PromptKind | None
    """None without a usable row."""
    columns: tuple[str, ...]
    """Columns that every usable row has, in order of first appearance."""
    optional_columns: tuple[str, ...]
    problems: list[Problem]
    """The first ones, in file order."""
    more_problems: int
    """How many were left out."""


def read_rows(path: Path, file_format: FileFormat) -> Iterator[Row]:
    """The rows of a file that `inspect_file` found good; raises `InvalidFile` at the first bad one."""
    for row in _rows(path, file_format):
        if isinstance(row, Problem):
            raise InvalidFile.of([row], subject="The file")
        yield row


def inspect_file(path: Path, file_format: FileFormat, *, max_problems: int = 20) -> FileReport:
    """Read the whole file, one row in memory at a time, and report everything that is wrong with it."""
    rows = more_problems = 0
    seen: Counter[str] = Counter()
    kinds: dict[PromptKind, int] = {}  # with the line where each begins
    prompts: set[int] = set()  # 64 bits of the digest each: enough to count, and little memory for a large file
    problems: list[Problem] = []
    for row in map(partial(_of_one_kind, kinds), _rows(path, file_format)):
        if isinstance(row, Row):
            rows += 1
            prompts.add(int(canonical_prompt_sha256(row)[:16], 16))
            seen.update(row.columns.keys())
        elif len(problems) < max_problems:
            problems.append(row)
        else:
            more_problems += 1
        if len(seen) > MAX_COLUMNS:
            problems.append(_TOO_MANY_COLUMNS)
            break
    if not rows and not problems:
        problems.append(_EMPTY)
    columns = tuple(name for name, count in seen.items() if count == rows)
    optional = tuple(name for name, count in seen.items() if count < rows)
    return FileReport(rows, len(prompts), next(iter(kinds), None), columns, optional, problems, more_problems)


def canonical_prompt_sha256(row: Row) -> str:
    """The identity of a task, for overlap between files: its words in lower case with single spaces.

    Instructions (system and developer messages) are left out: the same question under another one is the same task.
    """
    if isinstance(row.prompt, str):
        text = row.prompt
    else:
        text = " ".join(m["content"] for m in row.prompt if m["role"] not in {"system", "developer"})
    return hashlib.sha256(" ".join(text.lower().split()).encode()).hexdigest()


def _rows(path: Path, file_format: FileFormat) -> Iterator[Row | Problem]:
    for record in read_records(path, file_format):
        if isinstance(record, Problem):
            yield record
        elif _prompt_column(record.fields) is None and file_format is not FileFormat.JSONL:
            yield _missing_prompt(1, record.fields)  # the whole table lacks it
            return
        else:
            yield from _checked(record)


def _of_one_kind(kinds: dict[PromptKind, int], row: Row | Problem) -> Row | Problem:
    """A problem in place of the first row whose prompt is not what the file began with; later ones are like it."""
    if isinstance(row, Problem) or (kind := _KINDS[type(row.prompt)]) in kinds:
        return row
    kinds[kind] = row.line
    if len(kinds) == 1:
        return row
    (first, line), (odd, _) = kinds.items()
    message = f"the prompt is {_IN_WORDS[odd]}, that of line {line} is {_IN_WORDS[first]}"
    return Problem(f"line {row.line}", message, "mixed_prompts", "Use one kind of prompt in a file.")


def _checked(record: Record) -> Sequence[Row | Problem]:
    return [*_value_problems(record), *_prompt_problems(record)] or [_row(record)]


def _row(record: Record) -> Row:
    name = _prompt_column(record.fields)
    assert name is not None
    prompt = record.fields[name]
    if not isinstance(prompt, str):
        prompt = [ChatMessage(role=m["role"], content=m["content"]) for m in prompt]
    columns = {key: value for key, value in record.fields.items() if key != "prompt"}
    return Row(record.line, prompt, columns)


def _prompt_column(fields: Mapping[str, Any]) -> str | None:
    return next((name for name in PROMPT_COLUMNS if name in fields), None)


def _prompt_problems(record: Record) -> Iterator[Problem]:
    name = _prompt_column(record.fields)
    if name is None:
        yield _missing_prompt(record.line, record.fields)
        return
    prompt = record.fields[name]
    if isinstance(prompt, list) and name in {"prompt", "messages"}:
        faults = _conversation_faults(prompt)
    else:
        faults = _text_prompt_faults(name, prompt)
    for message, fix in faults:
        yield Problem(f"line {record.line}", f"`{name}` {message}", "invalid_prompt", fix)


def _text_prompt_faults(name: str, prompt: object) -> Iterator[tuple[str, str]]:
    if name == "messages":
        yield f"is {kind_of(prompt)}, not a list of messages", "Use JSONL or Parquet for chat messages."
    elif not isinstance(prompt, str):
        also = " or a list of messages" if name == "prompt" else ""
        yield f"is {kind_of(prompt)}, not text{also}", f"Give `{name}` as text."
    elif not prompt.strip():
        yield "is empty", "Remove the row, or give it a prompt."


def _conversation_faults(messages: list[object]) -> Iterator[tuple[str, str]]:
    if not messages:
        yield "is an empty list", 'Give at least one message: {"role": "user", "content": "..."}.'
        return
    faults = [fault for number, message in enumerate(messages, 1) for fault in _message_faults(number, message)]
    yield from faults
    if faults:
        return
    last = messages[-1]
    role = last["role"] if isinstance(last, dict) else None
    if role == "assistant":
        yield (
            "ends with an assistant message, but the model is to write the answer itself",
            "Remove the last message; keep the reference answer in a column of its own for the reward.",
        )
    elif role != "user":
        yield f"ends with a {role} message", "End the messages with the user's."


def _message_faults(number: int, message: object) -> Iterator[tuple[str, str]]:
    if not isinstance(message, dict):
        yield f"has {kind_of(message)} as message {number}", "A message is an object with `role` and `content`."
        return
    if message.get("role") not in ROLES:
        yield f"has the role {shown(message.get('role'))} in message {number}", f"Roles are {', '.join(ROLES)}."
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        kind = "empty content" if isinstance(content, str) else f"{kind_of(content)} as content"
        yield f"has {kind} in message {number}", "Give `content` as text."
    for key, value in message.items():
        if key not in {"role", "content"} and value is not None:
            yield f"has {shown(key)} in message {number}", "A message has `role` and `content` only."


def _missing_prompt(line: int, fields: Mapping[str, Any]) -> Problem:
    for name in fields:
        if near := difflib.get_close_matches(name.lower()[:64], PROMPT_COLUMNS, n=1, cutoff=0.7):
            fix = f"Rename {shown(name)} to `{near[0]}`."
            break
    else:
        fix = "Give every row a `prompt`: text, or a list of chat messages."
    names = ", ".join(shown(name) for name in list(fields)[:8]) or "none"
    forms = ", ".join(f"`{name}`" for name in PROMPT_COLUMNS)
    return Problem(
        f"line {line}", f"there is no prompt column ({forms}); the columns are {names}", "missing_prompt", fix
    )


def _value_problems(record: Record) -> Iterator[Problem]:
    for key, value in record.fields.items():
        if fault := _fault(key) or _fault(value):
            path, message, fix = fault
            yield Problem(f"line {record.line}", f"{shown(key + path)} {message}", "invalid_value", fix)


def _fault(value: object, depth: int = 0) -> _Fault | None:
    """What neither JSON nor Postgres can keep in a value. The path is made on the way back, so good rows are cheap."""
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, dict | list):
        return _inner_fault(value, depth)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "", "is an integer beyond 64 bits", "Give it as text."
    if isinstance(value, float) and not math.isfinite(value):
        return "", "is NaN, Infinity or too large a number", "Use null for a missing number."
    return None


def _text_fault(text: str) -> _Fault | None:
    if not (bad := _UNSTORABLE.search(text)):
        return None
    what = "a NUL character" if bad.group() == "\0" else f"a lone surrogate (\\u{ord(bad.group()):04x})"
    return "", f"contains {what} at character {bad.start() + 1}", "Remove it: it is not text."


def _inner_fault(value: dict[str, Any] | list[Any], depth: int) -> _Fault | None:
    if depth >= MAX_NESTING:
        return "", f"is nested deeper than {MAX_NESTING} levels", "Flatten the value."
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if fault := _fault(item, depth + 1) or _fault(key):
            path, message, fix = fault
            return f".{key}{path}" if isinstance(key, str) else f"[{key}]{path}", message, fix
    return None
