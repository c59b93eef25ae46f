"""The demo task: its committed files, its three disjoint splits, and its reward."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

TASK = Path(__file__).parents[2] / "examples" / "biography"
make_data = runpy.run_path(str(TASK / "make_data.py"))
reward: Callable[[str, dict[str, Any]], float] = runpy.run_path(str(TASK / "reward.py"))["reward"]

RECORD = {
    "birth_date": "1874-03-12",
    "birth_place": "Lyon",
    "death_date": None,
    "death_place": None,
    "occupation": "painter",
}


def read(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TASK / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_generator_reproduces_the_committed_file(split: str) -> None:
    assert make_data["render"](split, 42) == (TASK / f"{split}.jsonl").read_text(encoding="utf-8")


def test_another_seed_gives_other_data() -> None:
    assert make_data["render"]("heldout", 42) != make_data["render"]("heldout", 43)


def test_rows_have_the_documented_shape() -> None:
    for row in read("train") + read("heldout"):
        assert row.keys() == {"messages", "record"}
        assert [message["role"] for message in row["messages"]] == ["user"]
        assert tuple(row["record"]) == make_data["FIELDS"]


def test_sizes() -> None:
    assert (len(read("train")), len(read("heldout"))) == (1000, 200)


def test_no_biography_is_in_two_splits() -> None:
    names = {
        split: {biography.name for biography in islice(make_data["biographies"](split, 42), 2000)}
        for split in ("train", "heldout", "sft")
    }
    assert not names["train"] & names["heldout"]
    assert not names["sft"] & (names["train"] | names["heldout"])


def test_no_heldout_text_is_in_train() -> None:
    texts = {split: {row["messages"][0]["content"] for row in read(split)} for split in ("train", "heldout")}
    assert not texts["train"] & texts["heldout"]


def test_every_fact_but_the_date_format_is_in_the_text() -> None:
    for row in read("train"):
        text, record = row["messages"][0]["content"], row["record"]
        for field in ("birth_place", "death_place", "occupation"):
            assert record[field] is None or record[field] in text


def test_gold_earns_one() -> None:
    for row in read("heldout"):
        assert reward(json.dumps(row["record"]), row["record"]) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "garbage",
        "null",
        "[]",
        "{",
        "{}",
        "[" * 100_000,
        json.dumps(RECORD | {"extra": None}),
        '"birth_date"',
        "12",
    ],
)
def test_what_is_not_a_record_earns_nothing(completion: str) -> None:
    assert reward(completion, RECORD) == 0.0


@pytest.mark.parametrize("right", range(6))
def test_each_right_field_earns_a_fifth(right: int) -> None:
    wrong = dict.fromkeys(list(RECORD)[right:], "wrong")
    assert reward(json.dumps(RECORD | wrong), RECORD) == right / 5
