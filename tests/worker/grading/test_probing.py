"""The probe against real rewards in real sandboxes: what it says of good ones, and of those that pay for junk."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.builtin_rewards.catalogue import parse_builtin
from core.reward_report import FlagCode, FlagLevel, ProbeCase, ProbeReport, ProbeStatus, Wrapping
from core.reward_source import RewardForm, analyse
from core.rows import Row
from core.settings import CHECKOUT
from worker.grading.builtins.endpoint import HttpGrader
from worker.grading.grades import Grade, GradeOutcome
from worker.grading.probing import MOST_ROWS, probe, probe_source, synthetic_rows
from worker.grading.process import OutputTail
from worker.grading.terms import BuiltinGrader, CodeTestsGrader

DEADLINE_S = 40.0
JUNK = [
    FlagCode.PAYS_FOR_CONSTANT,
    FlagCode.PAYS_FOR_EMPTY,
    FlagCode.PAYS_FOR_ECHO,
    FlagCode.PAYS_FOR_NON_UTF8,
]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]


def reward(value: str, *, first: str = "pass", imports: str = "sys") -> str:
    return f"import {imports}\ndef reward(completion, answer):\n    {first}\n    return {value}"


EXACT = reward("float(completion.strip() == answer)")


def rows(*answers: Any, column: str = "answer", **more: Any) -> list[Row]:
    answers = answers or ("17", "23", "58", "99")
    return [Row(n, f"What is number {n}?", {column: answer, **more}) for n, answer in enumerate(answers, 1)]


@pytest.fixture
def probed(write: Callable[[str], Path]) -> Callable[..., ProbeReport]:
    """The report on a source."""

    def _probed(source: str, *data: Row, deadline_s: float = DEADLINE_S, form: RewardForm | None = None) -> ProbeReport:
        return probe_source(write(source), data or rows(), entry_point=None, form=form, deadline_s=deadline_s)

    return _probed


def codes(report: ProbeReport, *levels: FlagLevel) -> set[FlagCode]:
    levels = levels or (FlagLevel.ERROR, FlagLevel.WARNING)
    return {flag.code for flag in report.flags if flag.level in levels}


# Good ones.


def test_an_exact_match_has_no_flags_and_its_gold_is_found(probed):
    report = probed(EXACT)
    assert (report.status, report.flags) == (ProbeStatus.PASSED, ())
    assert (report.gold.column, report.gold.wrapping, report.gold.result.mean) == ("answer", Wrapping.TEXT, 1.0)
    assert (report.rows, report.stable, report.not_tried, report.synthetic) == (4, True, (), False)
    assert report.columns.required == ("answer",)
    assert {one.case for one in report.cases} == set(ProbeCase) - {ProbeCase.GOLD}
    assert ProbeReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(
    ("found", "wrapping"),
    [
        (r"re.findall(r'\\boxed{(.*?)}', completion)", Wrapping.BOXED),
        ("re.findall(r'<answer>(.*?)</answer>', completion)", Wrapping.ANSWER_TAGS),
        (
            "re.findall(r'^<think>.*</think>\\s*<answer>\\s*(.*?)\\s*</answer>$', completion, re.S)",
            Wrapping.THINK_ANSWER,
        ),
        ("re.findall(r'answer is (.*)\\.', completion)", Wrapping.SENTENCE),
        ("re.findall(r'^#### (.*)$', completion)", Wrapping.HASHES),
        ('re.findall(r\'^{"answer": "(.*)"}$\', completion)', Wrapping.JSON_ANSWER),
    ],
)
def test_gold_is_found_in_the_form_that_the_reward_reads(probed, found, wrapping):
    report = probed(reward(f"float([text.strip() for text in {found}] == [answer])", imports="re"))
    assert (report.gold.wrapping, report.gold.recognised, report.gold.result.mean) == (wrapping, True, 1.0)
    assert codes(report) == set()


def test_gold_in_objects_is_found(probed):
    whole = "import json\ndef reward(completion, record):\n    try: return float(json.loads(completion) == record)\n"
    whole += "    except ValueError: return 0.0"
    report = probed(whole, *rows({"x": 1}, {"x": 2}, column="record"))
    assert (report.gold.column, report.gold.result.mean) == ("record", 1.0)
    inside = "def grade(sample, item): return float(sample['output_text'] == item['record']['x'])"
    report = probed(inside, *rows({"x": "1"}, {"x": "2"}, column="record"))
    assert (report.gold.column, report.gold.result.mean) == ("record.x", 1.0)


def test_many_rows_are_thinned_evenly(probed):
    report = probed(EXACT, *rows(*map(str, range(100, 200))))
    assert report.rows == MOST_ROWS
    assert report.gold.result.sent == "100"


def test_chat_rows_are_shown_their_last_message(probed):
    source = "def f(completions, answer): return [float(c[0]['content'] == 'How many?') for c in completions]"
    report = probed(source, *[Row(n, CHAT, {"answer": str(n)}) for n in range(1, 4)])
    (echo,) = (one for one in report.cases if one.case is ProbeCase.ECHO)
    assert (echo.sent, echo.mean) == ("How many?", 1.0)
    assert FlagCode.PAYS_FOR_ECHO in codes(report)


# Bad ones.


def test_paying_always_is_paying_for_junk(probed):
    report = probed("def reward(completion): return 1.0")
    assert report.status is ProbeStatus.FLAGGED
    assert codes(report) == {*JUNK, FlagCode.ALWAYS_THE_SAME}
    assert codes(report, FlagLevel.INFO) == {FlagCode.PAYS_FOR_FORMAT_ONLY, FlagCode.GOLD_NOT_TRIED}


def test_paying_for_length_is_flagged(probed):
    report = probed(reward("float(answer in completion) + len(completion) / 100"))
    assert codes(report) >= {FlagCode.PAYS_FOR_LENGTH, FlagCode.PREFERS_JUNK_TO_GOLD}
    assert report.status is ProbeStatus.FAILED


def test_searching_for_the_answer_pays_for_a_list_of_all(probed):
    report = probed(reward("float(answer in completion)"))
    assert codes(report) == {FlagCode.PAYS_FOR_EVERY_ANSWER}


def test_searching_for_the_answer_pays_for_the_prompt_that_holds_it(probed):
    data = [Row(n, f"The year was 19{n}0. Which year?", {"answer": f"19{n}0"}) for n in range(1, 3)]
    report = probed(reward("float(answer in completion)"), *data)
    assert codes(report) == {FlagCode.PAYS_FOR_ECHO}


def test_a_comparison_the_wrong_way_round_prefers_junk(probed):
    report = probed(reward("float(completion != answer)"))
    assert codes(report) >= {FlagCode.PREFERS_JUNK_TO_GOLD, *JUNK}


@pytest.mark.parametrize(
    ("believes", "variant"),
    [
        ("'score: 1.0' in completion", "score_line"),
        ("'full score' in completion", "instruction"),
        ("'\"score\": 1.0' in completion", "json_score"),
        ("'</think>' in completion[-70:] and '<answer>' not in completion", "end_of_thinking"),
        ("completion.count('<answer>') > 1", "nested_tags"),
    ],
)
def test_believing_what_the_completion_says_of_itself_is_flagged(probed, believes, variant):
    report = probed(reward(f"float(completion == answer or {believes})"))
    (flag,) = (flag for flag in report.flags if flag.level is FlagLevel.WARNING)
    assert (flag.code, variant in flag.message) == (FlagCode.FOOLED_BY_MARKUP, True)


def test_paying_for_the_kind_of_answer_is_not_taken_for_judging_it(probed):
    report = probed("def f(completions, **columns): return [float(text.isdecimal()) for text in completions]")
    assert (report.gold.column, report.gold.recognised, codes(report)) == ("answer", False, set())
    assert FlagCode.PAYS_FOR_OTHER_ANSWER in codes(report, FlagLevel.INFO)


def test_a_small_bonus_for_length_is_not_taken_for_gold(probed):
    source = "def f(completions, **columns):\n"
    source += "    return [('<answer>' in text) - 0.001 * len(text.strip('<>answer/ ')) for text in completions]"
    assert probed(source, *rows("1", "22", "3", "4")).gold.recognised is False


def test_a_form_term_is_information_and_not_taken_for_gold(probed):
    source = "import re\ndef f(completions, **columns): return [float('<answer>' in c[:60]) for c in completions]"
    report = probed(source)
    assert report.gold.recognised is False
    assert codes(report, FlagLevel.INFO) >= {FlagCode.PAYS_FOR_FORMAT_ONLY, FlagCode.GOLD_NOT_RECOGNISED}


def test_raising_on_empty_is_a_warning_with_what_was_raised(probed):
    report = probed(reward("float(completion.splitlines()[-1] == answer)"))
    assert codes(report) == {FlagCode.ERRORS_ON_EMPTY}
    assert "4 of 4" in report.flags[0].message
    assert "IndexError" in report.flags[0].message


def test_digits_that_are_no_numbers_are_found(probed):
    source = reward("float(answer in [str(int(c)) for c in completion if c.isdigit()])")
    report = probed(source, *rows("6", "7", "8"))
    assert FlagCode.ERRORS_ON_NON_UTF8 in codes(report)
    assert any("invalid literal for int()" in flag.message for flag in report.flags)


def test_what_always_raises_is_told_once(probed):
    report = probed(reward("undefined"))
    assert codes(report) == {FlagCode.NEVER_SCORES}
    assert "NameError" in report.flags[0].message


def test_chance_is_unstable_and_nothing_else_is_said_of_its_values(probed):
    report = probed(reward("random.random()", imports="random"))
    assert (report.stable, report.status, codes(report)) == (False, ProbeStatus.FAILED, {FlagCode.UNSTABLE})


def test_a_little_chance_is_a_warning(probed):
    source = reward("float(completion == answer) + random.random() / 100", imports="random")
    assert codes(probed(source)) == {FlagCode.UNSTABLE}


def test_a_batch_function_that_compares_its_batch_is_stable(probed):
    source = "def f(completions, answer):\n    most = max(map(len, completions), default=1) or 1\n"
    source += "    return [(c == a) * (1 + len(c) / most) for c, a in zip(completions, answer)]"
    assert probed(source).stable is True


def test_a_slow_reward_is_told_so_on_as_many_rows_as_there_is_time_for(probed):
    source = reward("float(completion == answer)", first="time.sleep(0.12)", imports="time")
    report = probed(source, deadline_s=16.0)
    assert codes(report) == {FlagCode.SLOW}
    assert 1 <= report.rows < 4
    assert report.latency.median_s >= 0.12
    assert report.gold.result.mean == 1.0


def test_a_reward_that_hangs_is_given_up_early(probed):
    report = probed(reward("1", first="while True: pass"), deadline_s=8.0)
    assert codes(report) == {FlagCode.NEVER_SCORES, FlagCode.SLOW}
    assert ProbeCase.VERY_LONG in report.not_tried
    assert sum(one.outcomes.timed_out for one in report.cases) <= 4


def test_what_hangs_on_one_text_is_asked_once_and_the_others_all_the_same(probed):
    report = probed(reward("float(completion == answer)", first="while not completion: pass"), deadline_s=12.0)
    empty = next(one for one in report.cases if one.case is ProbeCase.EMPTY)
    assert (empty.outcomes.timed_out, empty.outcomes.scored) == (1, 0)
    assert codes(report) == {FlagCode.ERRORS_ON_EMPTY, FlagCode.SLOW}
    assert report.gold.result.outcomes.scored == report.rows > 1


def test_a_crash_on_one_text_is_an_error_of_that_text(probed):
    report = probed(reward("float(completion == answer)", first="completion or os._exit(3)", imports="os"))
    assert codes(report) == {FlagCode.ERRORS_ON_EMPTY}
    assert "exited with code 3" in report.flags[0].message


def test_what_a_reward_prints_is_in_the_report(probed):
    assert "seen 14" in probed(reward("0", first="print('seen', len(completion))")).output


# Loading and columns.


@pytest.mark.parametrize(
    ("source", "words", "raised"),
    [
        ("def reward(completion:\n", "line 1", True),
        ("def reward(prediction): return 1", "none of the forms", True),
        ("import torch\ndef reward(completion): return 1", "torch", True),
        ("import sys\nsys.exit(4)\ndef reward(completion): return 1", "SystemExit", True),
        ("import os\nos._exit(4)\ndef reward(completion): return 1", "exited with code 4", False),
    ],
)
def test_a_source_that_does_not_load_has_a_report(probed, source, words, raised):
    report = probed(source)
    assert report.load_raised is raised
    assert (report.loads, report.status, codes(report)) == (False, ProbeStatus.FAILED, {FlagCode.DOES_NOT_LOAD})
    assert words in report.load_error
    assert report.flags[0].fix


def test_a_loop_at_import_does_not_load(probed):
    report = probed("while True: pass\ndef reward(completion): return 1", deadline_s=4.0)
    assert (report.loads, report.load_raised, codes(report)) == (False, False, {FlagCode.DOES_NOT_LOAD})


def test_what_an_import_raises_is_kept_within_bounds(probed):
    report = probed("raise ValueError('x' * 10**6)\ndef reward(completion): return 1")
    assert "ValueError: xxx" in report.load_error
    assert len(report.model_dump_json()) < 10_000


def test_a_missing_column_is_named_with_the_nearest_and_nothing_is_graded(probed):
    report = probed("def reward(completion, answr, level): return 1.0")
    assert [(one.name, one.nearest) for one in report.columns.missing] == [("answr", ("answer",)), ("level", ())]
    assert (report.status, codes(report), report.cases) == (ProbeStatus.FAILED, {FlagCode.MISSING_COLUMN}, ())
    assert "Did you mean `answer`?" in report.flags[0].fix


def test_a_column_that_some_rows_lack_is_missing(probed):
    report = probed(EXACT, *rows("1"), Row(2, "?", {}))
    assert codes(report) == {FlagCode.MISSING_COLUMN}


def test_verl_columns_stand_in_for_ground_truth(probed):
    source = (
        "def f(data_source, solution_str, ground_truth, extra_info=None): return float(solution_str == ground_truth)"
    )
    data = rows({"ground_truth": "17"}, {"ground_truth": "23"}, column="reward_model", data_source="x")
    report = probed(source, *data)
    assert (codes(report), report.gold.result.mean) == (set(), 1.0)


# Without data.


def test_without_data_rows_are_made_up_and_gold_is_not_judged(write):
    report = probe_source(write(EXACT), [], entry_point=None, form=None, deadline_s=DEADLINE_S)
    assert (report.synthetic, report.gold, report.status) == (True, None, ProbeStatus.PASSED)
    assert FlagCode.GOLD_NOT_TRIED in codes(report, FlagLevel.INFO)


def test_made_up_rows_have_what_the_reward_needs():
    entry = analyse("def f(completions, answer, info, level=1): ...")
    made = synthetic_rows(entry)
    assert all(row.columns == {"answer": "42", "info": {}} for row in made)
    assert len({row.prompt for row in made}) == len(made)


def documented() -> list[tuple[str, str]]:
    """Form and source of each function in docs/rewards.md."""
    text = (CHECKOUT / "docs/rewards.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    imports = "\n".join(line for line in block.splitlines() if line.startswith("from "))
    functions = [node for node in ast.parse(block).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    sources = [f"{imports}\n{ast.unparse(node)}" for node in functions]
    return [(analyse(source).form, source) for source in sources]


@pytest.mark.parametrize(("form", "source"), documented())
def test_every_documented_form_is_probed_with_its_gold(probed, form, source):
    data = rows("17", "23", "58", column="answer", ground_truth="17", data_source="x", prompt_kind="chat")
    data = [Row(row.line, CHAT, {**row.columns, "ground_truth": row.columns["answer"]}) for row in data]
    if form == RewardForm.TRL:  # it is written for text prompts
        data = [Row(row.line, "How many?", row.columns) for row in data]
    report = probed(source, *data)
    assert codes(report) <= {FlagCode.PAYS_FOR_EVERY_ANSWER}
    assert (report.gold.recognised, report.gold.result.mean) == (True, 1.0)


def test_every_form_is_documented():
    assert {form for form, _ in documented()} == set(RewardForm)


# Built-ins, and other graders.


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"builtin": "exact_match", "column": "answer"}, set()),
        ({"builtin": "numeric", "column": "answer"}, set()),
        ({"builtin": "math", "column": "answer"}, set()),
        ({"builtin": "contains", "column": "answer"}, {FlagCode.PAYS_FOR_EVERY_ANSWER}),
        ({"builtin": "format_tags"}, set()),
        ({"builtin": "json_valid", "kind": "object"}, set()),
        ({"builtin": "repetition"}, set()),
        ({"builtin": "length", "min": 100}, {FlagCode.PAYS_FOR_LENGTH}),
    ],
)
def test_built_ins_are_probed(parameters, expected):
    builtin = parse_builtin(parameters)
    with BuiltinGrader(builtin) as grader:
        report = probe(grader, rows(), deadline_s=DEADLINE_S, reads=builtin)
    assert codes(report) == expected
    assert report.columns.required == builtin.columns
    if builtin.columns:
        assert (report.gold.recognised, report.gold.result.mean) == (True, 1.0)


def test_a_built_in_without_its_column_is_told_so():
    builtin = parse_builtin({"builtin": "exact_match", "column": "answr"})
    with BuiltinGrader(builtin) as grader:
        report = probe(grader, rows(), deadline_s=DEADLINE_S, reads=builtin)
    assert codes(report) == {FlagCode.MISSING_COLUMN}


def test_code_tests_are_probed_with_a_sandbox_for_each_as_far_as_time_goes():
    builtin = parse_builtin({"builtin": "code_tests", "column": "tests"})
    with CodeTestsGrader(builtin) as grader:
        report = probe(grader, rows("assert add(1, 1) == 2", column="tests"), deadline_s=10.0, reads=builtin)
    assert codes(report) <= {FlagCode.SLOW, FlagCode.ALWAYS_THE_SAME}
    assert report.loads


def test_an_endpoint_that_is_away_is_asked_a_few_times_only():
    builtin = parse_builtin({"builtin": "http", "url": "http://127.0.0.1:9/"})
    with HttpGrader(builtin, allow_private=True) as grader:
        report = probe(grader, rows(), deadline_s=DEADLINE_S, reads=builtin)
    assert (codes(report), report.stable, report.rows) == ({FlagCode.NEVER_SCORES}, None, 1)
    assert len(report.cases) == 4


class Silent:
    """Answers None to everything, as a reward that applies to nothing."""

    output = OutputTail()

    def grade(self, rollouts, *, step=0):
        return [Grade(GradeOutcome.NO_ANSWER)] * len(rollouts)


def test_no_answer_at_all_is_an_error_and_no_time_is_said():
    report = probe(Silent(), rows(), deadline_s=DEADLINE_S)
    assert codes(report) == {FlagCode.NEVER_SCORES}
    late = probe(Silent(), rows(), deadline_s=0.0)
    assert (late.cases, late.rows, codes(late, FlagLevel.INFO)) == ((), 0, {FlagCode.OUT_OF_TIME})
    assert set(late.not_tried) == set(ProbeCase) - {ProbeCase.OTHER_ANSWER, ProbeCase.EVERY_ANSWER}
