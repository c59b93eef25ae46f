import importlib.util
import json
from dataclasses import asdict

import pytest

from core.errors import InvalidReward
from core.reward_imports import REWARD_LIBRARIES
from core.reward_source import RewardEntry, RewardForm, analyse, bind, decode_source


def refused(source: str, **options) -> InvalidReward:
    with pytest.raises(InvalidReward) as caught:
        analyse(source, **options)
    caught.value.message.encode()
    assert caught.value.fix
    return caught.value


def entry(source: str, **options) -> RewardEntry:
    return analyse(source, **options)


# Forms.


def test_trl_batch_function_names_its_columns():
    source = "def f(prompts, completions, completion_ids, answer, hint=None, *, level, log_metric=None, **kwargs): ..."
    assert entry(source) == RewardEntry(
        name="f",
        form=RewardForm.TRL,
        provided=("completions", "prompts", "completion_ids", "log_metric"),
        columns=("answer", "level"),
        optional_columns=("hint",),
        takes_any=True,
        is_async=False,
        takes_kwargs=True,
    )


def test_async_is_told():
    assert entry("async def f(completions): ...").is_async


def test_openai_grader_names_the_columns_it_reads():
    source = """
def grade(sample, item):
    if "hint" in item:
        bonus = item["hint"]
    gold = item["answer"]
    item["scratch"] = 1
    return float(sample["output_text"] == gold) + item.get("extra", 0)
"""
    found = entry(source)
    assert (found.form, found.provided, found.takes_any) == (RewardForm.OPENAI, ("sample", "item"), True)
    assert found.columns == ("answer",)
    assert set(found.optional_columns) == {"hint", "extra"}


def test_openai_grader_that_catches_key_errors_needs_nothing():
    source = """
def grade(sample, item):
    try:
        return item["answer"]
    except KeyError:
        return None
"""
    assert entry(source).columns == ()


@pytest.mark.parametrize(
    ("signature", "provided", "columns"),
    [
        ("completion, answer", ("completion",), ("answer",)),
        ("prompt, completion, samples", ("completion", "prompt"), ("samples",)),
        ("response", ("response",), ()),
        ("completion, response", ("completion",), ("response",)),
    ],
)
def test_per_sample_function_binds_other_names_to_columns(signature, provided, columns):
    found = entry(f"def reward({signature}): ...")
    assert (found.form, found.provided, found.columns) == (RewardForm.PER_SAMPLE, provided, columns)


def test_entry_is_plain_json():
    found = entry("def reward(completion, answer): ...")
    assert json.loads(json.dumps(asdict(found)))["form"] == "per_sample"


# Choosing the entry point.


def test_named_entry_point_wins():
    assert entry("def reward(completion): ...\ndef other(completions): ...", entry_point="other").name == "other"


@pytest.mark.parametrize("name", ["reward", "grade", "reward_func", "compute_score"])
def test_conventional_name_wins_over_other_functions_of_a_known_form(name):
    assert entry(f"def a(completion): ...\ndef {name}(response): ...\ndef z(completions): ...").name == name


def test_only_public_function_of_a_known_form_is_the_entry_point():
    source = "def parse(text): ...\ndef _private(completion): ...\ndef accuracy(completions, answer): ..."
    assert entry(source).name == "accuracy"


def test_several_candidates_are_listed_with_the_field_to_set():
    error = refused("def a(completion): ...\ndef b(completions): ...")
    assert (error.param, error.problems[0].code) == ("entry_point", "ambiguous_entry_point")
    assert "`a`, `b`" in error.message


def test_no_entry_point_lists_the_forms():
    error = refused("x = 1\ndef f(a, b): ...\ndef g(c): ...\nclass Reward: ...")
    assert error.problems[0].code == "no_entry_point"
    assert "`f`, `g`" in error.message
    assert "grade(sample, item)" in error.fix


@pytest.mark.parametrize("source", ["", "# nothing\n", "reward = lambda completion: 1.0"])
def test_source_without_functions_has_no_entry_point(source):
    assert refused(source).problems[0].code == "no_entry_point"


def test_function_meant_as_reward_is_shown_with_its_parameters():
    assert (
        "`reward(text, gold)` is in none of the forms" in refused("def reward(text, gold): ...\ndef z(): ...").message
    )


def test_parameters_by_position_only_are_refused():
    assert "by position only" in refused("def reward(completion, /, answer): ...").message


def test_openai_grader_with_further_parameters_is_refused():
    assert "needs more than `sample` and `item`" in refused("def grade(sample, item, level): ...").message
    assert entry("def grade(sample, item, level=1): ...").optional_columns == ()


def test_missing_named_entry_point_lists_what_is_there():
    error = refused("def reward(completion): ...", entry_point="score")
    assert "no top-level function `score`" in error.message
    assert "`reward`" in error.message


def test_named_entry_point_in_no_known_form_is_refused():
    assert "none of the forms" in refused("def helper(x): ...", entry_point="helper").message


# Source that cannot be used.


def test_syntax_error_names_line_column_and_text():
    error = refused("def reward(completion):\n    return (1 +\n")
    assert error.problems[0].code == "syntax_error"
    assert "line 2, column 12" in error.message
    assert "return (1 +" in error.message


@pytest.mark.parametrize("statement", ["return 1", "nonlocal x", "def f(a, a): ...", "await x"])
def test_errors_beyond_the_grammar_are_syntax_errors_too(statement):
    assert refused(f"def reward(completion): ...\n{statement}\n").problems[0].code == "syntax_error"


def test_nul_is_named_with_its_line():
    assert "line 2 contains a NUL" in refused("x = 1\n\0").message


@pytest.mark.parametrize("source", ["x = '\ud800'", "x = " + "(" * 5000, "x = " + "-" * 100_000 + "1"])
def test_source_that_breaks_the_parser_is_refused(source):
    refused(source)


def test_long_expressions_are_no_problem():
    entry("def reward(completion):\n    return " + " + ".join(["1"] * 600))


def test_bytes_that_are_not_utf8_are_named_by_line():
    with pytest.raises(InvalidReward, match="line 2 is not UTF-8"):
        decode_source(b"x = 1\n# caf\xe9")
    assert decode_source(b"\xef\xbb\xbfx = 1") == "x = 1"


# Imports.


@pytest.mark.parametrize("library", REWARD_LIBRARIES)
def test_declared_libraries_are_installed(library):
    assert importlib.util.find_spec(library)


@pytest.mark.parametrize(
    "line", ["import torch", "import numpy, requests", "from openai.types import X", "def f():\n    import torch"]
)
def test_import_of_what_is_not_there_is_refused(line):
    error = refused(f"{line}\ndef reward(completion): ...")
    assert error.problems[0].code == "unknown_import"
    assert "numpy" in error.fix


@pytest.mark.parametrize(
    "line",
    [
        "import re, json\nfrom numpy.linalg import norm\nimport sympy as sp",
        "from __future__ import annotations",
        "try:\n    import orjson as json\nexcept ImportError:\n    import json",
        "try:\n    import a\nexcept (AttributeError, ModuleNotFoundError):\n    a = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ],
)
def test_import_of_what_is_there_or_optional_is_fine(line):
    entry(f"{line}\ndef reward(completion): ...")


def test_import_in_try_without_a_fallback_is_refused():
    refused("try:\n    import torch\nexcept ValueError:\n    pass\ndef reward(completion): ...")


def test_relative_import_is_refused():
    assert refused("from . import x\ndef reward(completion): ...").problems[0].code == "relative_import"


def test_all_problems_are_reported_at_once_in_order():
    error = refused("import torch\nimport json\nimport requests\n")
    assert [problem.code for problem in error.problems] == ["unknown_import", "unknown_import", "no_entry_point"]
    assert "line 1" in error.problems[0].message
    assert "line 3" in error.problems[1].message


# Binding.


def test_missing_column_is_named_with_the_nearest():
    found = entry("def reward(completion, answer, level=1): ...")
    assert bind(found, ["answer"]) == []
    (problem,) = bind(found, ["anwser", "difficulty"], field="method.grpo.rewards[0]")
    assert problem.field == "method.grpo.rewards[0]"
    assert "`reward` reads the column `answer`" in problem.message
    assert "`anwser`" in problem.fix


def test_missing_column_without_a_near_one_lists_what_there_is():
    (problem,) = bind(entry("def reward(completion, answer): ..."), ["difficulty"])
    assert "`difficulty`" in problem.fix
