import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from core import records
from core.errors import InvalidFile, Problem
from core.rows import (
    MAX_COLUMNS,
    FileFormat,
    FileReport,
    Row,
    canonical_prompt_sha256,
    detect_format,
    inspect_file,
    read_rows,
)

USER = {"role": "user", "content": "Say hi"}


@pytest.fixture
def inspect(tmp_path):
    def _inspect(content: str | bytes, file_format: FileFormat = FileFormat.JSONL, **options) -> FileReport:
        path = tmp_path / "data"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return inspect_file(path, file_format, **options)

    return _inspect


@pytest.fixture
def rows(tmp_path):
    def _rows(content: str | bytes, file_format: FileFormat = FileFormat.JSONL) -> list[Row]:
        path = tmp_path / "data"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(read_rows(path, file_format))

    return _rows


@pytest.fixture
def write_parquet(tmp_path):
    def _write(table: pa.Table, **options) -> Path:
        path = tmp_path / "data.parquet"
        parquet.write_table(table, path, **options)
        return path

    return _write


def only(report: FileReport) -> Problem:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


# What a row is.


def test_prompt_and_columns_are_told_apart(rows):
    assert rows('{"prompt": "1+1?", "answer": 2}\n') == [Row(1, "1+1?", {"answer": 2})]


@pytest.mark.parametrize("column", ["question", "problem"])
def test_question_and_problem_are_prompts_and_stay_readable_for_the_reward(rows, column):
    assert rows(json.dumps({column: "1+1?", "answer": "2"})) == [Row(1, "1+1?", {column: "1+1?", "answer": "2"})]


def test_openai_messages_become_the_prompt_and_stay_in_the_item(rows):
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    (row,) = rows(json.dumps({"messages": messages, "reference": "hi"}))
    assert row.prompt == messages
    assert row.columns == {"messages": messages, "reference": "hi"}


def test_prompt_wins_over_messages_over_question_over_problem(rows):
    everything = {"problem": "d", "question": "c", "messages": [USER], "prompt": "a"}
    assert rows(json.dumps(everything))[0].prompt == "a"
    del everything["prompt"]
    assert rows(json.dumps(everything))[0].prompt == [USER]
    del everything["messages"]
    assert rows(json.dumps(everything))[0].prompt == "c"


def test_null_extras_of_a_message_are_dropped(rows):
    assert rows(json.dumps({"prompt": [USER | {"name": None}]}))[0].prompt == [USER]


def test_lines_count_blank_ones_and_crlf_is_fine(rows):
    found = rows('{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}\r\n')
    assert [(row.line, row.prompt) for row in found] == [(1, "a"), (4, "b")]


def test_byte_order_mark_is_tolerated(rows):
    assert rows(b'\xef\xbb\xbf{"prompt": "a"}')[0].prompt == "a"
    assert rows(b"\xef\xbb\xbfprompt,answer\na,b\n", FileFormat.CSV)[0].prompt == "a"


def test_read_rows_raises_at_the_first_bad_row(rows):
    with pytest.raises(InvalidFile) as caught:
        rows('{"prompt": "a"}\n{"prompt": 1}\n')
    assert caught.value.param == "line 2"


def test_report_tells_columns_of_all_rows_from_those_of_some(inspect):
    report = inspect('{"prompt": "a", "answer": 1}\n{"prompt": "b", "hint": 0, "answer": 2}\n')
    assert (report.rows, report.columns, report.optional_columns) == (2, ("answer",), ("hint",))
    assert report.problems == []


# What is wrong with a row.


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ('{"prompt": "a"', "invalid_json", "not JSON at column 15"),
        ("[1, 2]", "invalid_json", "is a list, not an object"),
        ('{"prompt": "a", "x": 1, "x": 2}', "duplicate_key", "the key 'x' stands more than once"),
        ('{"prompt": "a", "m": {"k": 1, "k": 2}}', "duplicate_key", "the key 'k'"),
        ('{"answer": 1}', "missing_prompt", "the columns are 'answer'"),
        ("{}", "missing_prompt", "the columns are none"),
        ('{"prompt": " \\n"}', "invalid_prompt", "`prompt` is empty"),
        ('{"prompt": null}', "invalid_prompt", "`prompt` is null, not text or a list of messages"),
        ('{"question": ["a"]}', "invalid_prompt", "`question` is a list, not text"),
        ('{"messages": "hi"}', "invalid_prompt", "`messages` is text, not a list"),
        ('{"messages": []}', "invalid_prompt", "`messages` is an empty list"),
        ('{"messages": ["hi"]}', "invalid_prompt", "has text as message 1"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "invalid_prompt", "the role 'bot' in message 1"),
        ('{"messages": [{"role": ["user"], "content": "a"}]}', "invalid_prompt", "the role ['user'] in message 1"),
        ('{"messages": [{"role": "user", "content": ""}]}', "invalid_prompt", "empty content in message 1"),
        ('{"messages": [{"role": "user", "content": null}]}', "invalid_prompt", "null as content in message 1"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "invalid_prompt", "ends with a system message"),
        ('{"prompt": [{"role": "user", "content": "a", "name": "b"}]}', "invalid_prompt", "has 'name' in message 1"),
        ('{"prompt": "a\\u0000b"}', "invalid_value", "'prompt' contains a NUL character at character 2"),
        ('{"prompt": "a", "x": {"y": ["\\ud800"]}}', "invalid_value", "'x.y[0]' contains a lone surrogate (\\ud800)"),
        ('{"prompt": "a", "\\udc00": 1}', "invalid_value", "contains a lone surrogate"),
        ('{"prompt": "a", "x": NaN}', "invalid_value", "'x' is NaN"),
        ('{"prompt": "a", "x": -Infinity}', "invalid_value", "'x' is NaN, Infinity"),
        ('{"prompt": "a", "x": 1e999}', "invalid_value", "too large a number"),
        ('{"prompt": "a", "x": 9223372036854775808}', "invalid_value", "'x' is an integer beyond 64 bits"),
        ('{"prompt": "a", "x": ' + "9" * 5000 + "}", "invalid_value", "'x' is an integer beyond 64 bits"),
        ('{"prompt": "a", "x": ' + "[" * 40 + "]" * 40 + "}", "invalid_value", "nested deeper than 32"),
        ('{"prompt": "a", "x": ' + "[" * 200_000 + "]" * 200_000 + "}", "invalid_json", "nested too deeply"),
    ],
)
def test_bad_row_is_named_by_line_and_reason(inspect, line, code, message):
    problem = only(inspect(f'{{"prompt": "good"}}\n{line}\n{{"prompt": "good"}}\n'))
    assert (problem.field, problem.code) == ("line 2", code)
    assert message in problem.message
    assert problem.fix
    (problem.message + problem.fix).encode()  # can be sent


def test_largest_64_bit_integers_pass(rows):
    assert rows(f'{{"prompt": "a", "x": [{2**63 - 1}, {-(2**63)}]}}')[0].columns == {"x": [2**63 - 1, -(2**63)]}


def test_surrogate_pair_is_one_character(rows):
    assert rows('{"prompt": "\\ud83d\\ude00"}')[0].prompt == "😀"


def test_answer_at_the_end_of_messages_comes_with_the_way_out(inspect):
    messages = [USER, {"role": "assistant", "content": "hi"}]
    problem = only(inspect(json.dumps({"messages": messages})))
    assert "ends with an assistant message" in problem.message
    assert "column of its own" in problem.fix


@pytest.mark.parametrize("wrong", ["promt", "Prompt", "prompts", "qestion"])
def test_missing_prompt_names_the_nearest_column(inspect, wrong):
    fix = only(inspect(json.dumps({wrong: "a", "answer": "b"}))).fix
    assert fix in {f"Rename {wrong!r} to `prompt`.", f"Rename {wrong!r} to `question`."}


def test_all_problems_are_reported_at_once_and_the_rest_counted(inspect):
    report = inspect('{"prompt": ""}\n' * 30 + '{"prompt": "a"}\n', max_problems=20)
    assert [problem.field for problem in report.problems] == [f"line {n}" for n in range(1, 21)]
    assert (report.rows, report.more_problems) == (1, 10)


def test_one_row_can_have_several_problems(inspect):
    report = inspect('{"prompt": [{"role": "x", "content": ""}], "a": NaN, "b": "\\u0000"}')
    assert len(report.problems) == 4


@pytest.mark.parametrize("file_format", [FileFormat.JSONL, FileFormat.CSV])
@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_empty_file_says_so(inspect, file_format, content):
    assert only(inspect(content, file_format)).code == "empty_file"


def test_header_alone_is_an_empty_file(inspect):
    assert only(inspect("prompt,answer\n", FileFormat.CSV)).code == "empty_file"


@pytest.mark.parametrize("file_format", [FileFormat.JSONL, FileFormat.CSV])
def test_not_utf8_names_line_and_byte(inspect, file_format):
    head = '{"prompt": "ä"}\n' if file_format is FileFormat.JSONL else "prompt\nä\n"
    problem = only(inspect(head.encode() + b"caf\xe9\n", file_format))
    assert problem.code == "not_utf8"
    assert problem.field == f"line {head.count(chr(10)) + 1}"
    assert f"byte {len(head.encode()) + 3} of the file (0xe9)" in problem.message


def test_byte_offset_counts_the_byte_order_mark(inspect):
    assert "byte 5 of" in only(inspect(b"\xef\xbb\xbfab\xff")).message


def test_line_over_the_cap_is_skipped_not_loaded(inspect, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 64)
    fits = '{"prompt": "' + "b" * 50 + '"}'
    assert len(fits) == 64
    report = inspect('{"prompt": "' + "a" * 1000 + f'"}}\n{fits}\n')
    assert (only(report).field, only(report).code, report.rows) == ("line 1", "line_too_long", 1)


def test_byte_offset_counts_a_skipped_line(inspect, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 64)
    report = inspect(b"x" * 1000 + b"\n\xff\n")
    assert "byte 1001 of" in report.problems[1].message


def test_open_ended_keys_are_refused_before_they_fill_memory(inspect):
    lines = "".join(json.dumps({"prompt": "a", f"key{n}": 1}) + "\n" for n in range(MAX_COLUMNS + 100))
    report = inspect(lines)
    assert only(report).code == "too_many_columns"
    assert report.rows == MAX_COLUMNS + 1


# CSV.


def test_csv_cells_stay_text_even_when_they_look_like_numbers(rows):
    assert rows("prompt, answer\n42,007\n", FileFormat.CSV) == [Row(2, "42", {"answer": "007"})]


def test_csv_row_is_numbered_by_its_first_line(rows):
    found = rows('prompt,answer\n"a\nb",1\n\n"c,""d""",2\n', FileFormat.CSV)
    assert [(row.line, row.prompt) for row in found] == [(2, "a\nb"), (5, 'c,"d"')]


def test_csv_problems_have_lines_and_reading_goes_on(inspect):
    report = inspect('prompt,answer\na,b\na\na,b,c\n"a"x,b\n ,b\na\0,b\nz,z\n', FileFormat.CSV)
    assert [(problem.field, problem.code) for problem in report.problems] == [
        ("line 3", "ragged_row"),
        ("line 4", "ragged_row"),
        ("line 5", "invalid_csv"),
        ("line 6", "invalid_prompt"),
        ("line 7", "invalid_value"),
    ]
    assert report.rows == 2


def test_csv_without_a_header_is_one_problem(inspect):
    problem = only(inspect("What is 1+1?,2\n" * 50, FileFormat.CSV))
    assert (problem.field, problem.code) == ("line 1", "missing_prompt")


def test_csv_header_names_each_column_once(inspect):
    report = inspect("prompt,x,x,\na,b,c,d\n", FileFormat.CSV)
    assert [problem.code for problem in report.problems] == ["invalid_header", "invalid_header"]


def test_csv_cannot_hold_messages(inspect):
    problem = only(inspect('messages\n"[{}]"\n', FileFormat.CSV))
    assert "JSONL" in problem.fix


def test_csv_quote_left_open_is_named_by_the_line_that_opens_it(inspect, monkeypatch):
    assert only(inspect('prompt\na\n"b\nc\n', FileFormat.CSV)).field == "line 3"
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 200)
    problem = only(inspect('prompt\na\n"b\n' + "c\n" * 300, FileFormat.CSV))
    assert (problem.field, problem.code) == ("line 3", "line_too_long")


# Parquet.


def test_parquet_rows_become_json_values(write_parquet):
    table = pa.table(
        {
            "prompt": pa.array([[USER], [USER]]),
            "answer": pa.array([1, None]),
            "gold": pa.array([{"a": [1.5]}, None]),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
        }
    )
    found = list(read_rows(write_parquet(table), FileFormat.PARQUET))
    assert found[0] == Row(1, [USER], {"answer": 1, "gold": {"a": [1.5]}, "kind": "x"})
    assert (found[1].line, found[1].columns["gold"]) == (2, None)


def test_parquet_types_beyond_json_are_refused_by_column(write_parquet):
    table = pa.table({"prompt": ["a"], "when": [dt.datetime(2026, 1, 1)], "raw": [b"x"], "in": [[{"t": b"x"}]]})  # noqa: DTZ001
    report = inspect_file(write_parquet(table), FileFormat.PARQUET)
    assert [problem.message.split(" holds")[0] for problem in report.problems] == [
        "the column 'when'",
        "the column 'raw'",
        "the column 'in'",
    ]
    assert report.rows == 0


def test_parquet_without_a_prompt_is_one_problem(write_parquet):
    report = inspect_file(write_parquet(pa.table({"promt": ["a"] * 500})), FileFormat.PARQUET)
    assert "Rename 'promt'" in only(report).fix


def test_parquet_nan_is_refused_with_its_row(write_parquet):
    report = inspect_file(write_parquet(pa.table({"prompt": ["a", "b"], "x": [1.0, float("nan")]})), FileFormat.PARQUET)
    assert only(report).field == "line 2"


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"hello" * 100])
def test_corrupt_parquet_is_a_problem(inspect, content, tmp_path):
    problem = only(inspect(content, FileFormat.PARQUET))
    assert problem.code == "invalid_parquet"
    assert str(tmp_path) not in problem.message


def test_parquet_torn_in_the_middle_is_a_problem(write_parquet):
    path = write_parquet(pa.table({"prompt": [f"text {n}" for n in range(5000)]}), compression="zstd")
    data = bytearray(path.read_bytes())
    data[1000:3000] = b"\xff" * 2000
    path.write_bytes(data)
    assert "invalid_parquet" in {problem.code for problem in inspect_file(path, FileFormat.PARQUET).problems}


def test_parquet_text_that_is_not_utf8_is_a_problem(write_parquet):
    bad = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]])
    report = inspect_file(write_parquet(pa.table({"prompt": bad})), FileFormat.PARQUET)
    assert only(report).code == "invalid_parquet"


def test_parquet_row_group_over_the_cap_is_refused_unread(write_parquet, monkeypatch):
    monkeypatch.setattr(records, "MAX_ROW_GROUP_BYTES", 1000)
    path = write_parquet(pa.table({"prompt": [f"text {n}" for n in range(5000)]}))
    assert only(inspect_file(path, FileFormat.PARQUET)).code == "row_group_too_large"


# Formats and identities.


@pytest.mark.parametrize(
    ("filename", "head", "expected"),
    [
        ("a.jsonl", b"", FileFormat.JSONL),
        ("a.NDJSON", b"", FileFormat.JSONL),
        ("a.json", b"[", FileFormat.JSONL),
        ("a.csv", b"prompt", FileFormat.CSV),
        ("a.parquet", b"", FileFormat.PARQUET),
        ("a.jsonl", b"PAR1", FileFormat.PARQUET),
        ("upload", b'\xef\xbb\xbf\n {"prompt"', FileFormat.JSONL),
    ],
)
def test_format_is_told_by_content_then_by_name(filename, head, expected):
    assert detect_format(filename, head) is expected


@pytest.mark.parametrize("filename", ["upload", "data.jsonl.gz", "x\ud800"])
def test_unknown_format_is_refused_with_a_fix(filename):
    with pytest.raises(InvalidFile) as caught:
        detect_format(filename, b"\x1f\x8b")
    assert caught.value.fix
    caught.value.message.encode()


def test_same_task_in_other_words_of_case_space_and_instruction_is_the_same():
    plain = Row(1, "  What is\n1+1? ", {})
    chat = Row(2, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is 1+1?"}], {})
    other = Row(3, "What is 1+2?", {})
    assert canonical_prompt_sha256(plain) == canonical_prompt_sha256(chat) != canonical_prompt_sha256(other)


TEXT, CHAT = '{"prompt": "hi"}\n', json.dumps({"prompt": [USER]}) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT + TEXT + CHAT + CHAT, "the prompt is a list of messages, that of line 1 is text"),
        (CHAT + CHAT + TEXT + CHAT, "the prompt is text, that of line 1 is a list of messages"),
        (CHAT + CHAT + '{"question": "2+2?"}\n', "the prompt is text, that of line 1 is a list of messages"),
    ],
)
def test_the_first_row_with_another_kind_of_prompt_is_named(inspect, content, message):
    found = only(inspect(content))
    assert (found.field, found.code, found.message) == ("line 3", "mixed_prompts", message)


@pytest.mark.parametrize("content", [TEXT + '{"question": "2+2?"}\n', CHAT + json.dumps({"messages": [USER]})])
def test_prompts_of_one_kind_may_stand_in_different_columns(inspect, content):
    assert inspect(content).problems == []
