"""How alike and how repetitive completions are."""

import random

import pytest

from worker.training.text_health import REFUSAL_CHARS, SHORTEST_BYTES, is_refusal, text_metrics

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


@pytest.mark.parametrize(
    ("texts", "share"), [(["a", "a", "a", "a"], 1.0), (["a", "b", "a", "c"], 0.5), (["a", "b", "c", "d"], 0.25)]
)
def test_one_answer_to_several_prompts_is_counted(texts: list[str], share: float):
    assert text_metrics(texts, group_size=2)["completions/most_common_share"] == share


def test_with_one_prompt_nothing_can_be_the_same_across_prompts():
    assert "completions/most_common_share" not in text_metrics(["a", "a"], group_size=2)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\N{RIGHT SINGLE QUOTATION MARK}m sorry, but that is not possible.",
        "I cannot assist with this request.",
        "As an AI language model, I do not have opinions.",
        "Unfortunately, I am unable to open links.",
        "I must respectfully decline.",
        "I apologize, but no.",
        "{}\nI won't do that.",
    ],
)
def test_what_models_say_when_they_refuse_is_a_refusal(text: str):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "42",
        '{"death_date": null}',
        "She was sorry that she could not help him.",
        "The function cannot return None, as an assertion shows.",
        "I cannot be sure that x > 0, so let us look at both cases.",
        "I am going to solve it step by step.",
        "As an example, take n = 3.",
        "",
        "x" * REFUSAL_CHARS + " I'm sorry, but I can't help with that.",
    ],
)
def test_what_answers_say_is_none(text: str):
    assert not is_refusal(text)


def test_refusals_are_counted_over_all_completions():
    assert text_metrics(["I can't help with that.", "4", "5", "6"], group_size=2)["completions/refusal_share"] == 0.25
