"""How alike and how repetitive completions are."""

import random

import pytest

from worker.training.text_health import SHORTEST_BYTES, text_metrics

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "while",
    "seven",
    "other",
    "animals",
    "sleep",
    "near",
    "an",
    "old",
    "wooden",
    "bridge",
]


def prose(seed: int, words: int = 120) -> str:
    generator = random.Random(seed)
    return " ".join(generator.choice(WORDS) for _ in range(words))


@pytest.mark.parametrize(
    ("texts", "share"),
    [(["a", "b", "c", "d"], 1.0), (["a", "a", "a", "a"], 0.5), (["a", "a", "b", "c"], 0.75)],
)
def test_distinct_completions_are_counted_within_their_group(texts: list[str], share: float):
    assert text_metrics(texts, group_size=2)["completions/distinct_share"] == share


def test_a_loop_compresses_to_nearly_nothing_and_prose_does_not():
    loop = text_metrics(["again and again " * 100] * 2, group_size=2)["completions/compressed_share"]
    text = text_metrics([prose(1), prose(2)], group_size=2)["completions/compressed_share"]
    assert loop < 0.1 < 0.3 < text


def test_short_completions_say_nothing_of_repetition():
    assert "completions/compressed_share" not in text_metrics(["a" * (SHORTEST_BYTES - 1)] * 2, group_size=2)


def test_half_a_character_is_counted_too():
    assert text_metrics(["\udc80" * SHORTEST_BYTES] * 2, group_size=2)["completions/distinct_share"] == 0.5
