"""`podium reward ...` as people run it: a process, and a sandbox below it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.reward_report import FlagCode, ProbeReport
from core.reward_source import FORMS
from core.settings import CHECKOUT

EXACT = "def reward(completion, answer):\n    print('asked')\n    return float(completion == answer)\n"
Podium = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": str(n)}) + "\n" for n in range(20, 30)))
    return path


@pytest.fixture
def podium(tmp_path: Path) -> Podium:
    def _podium(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **environment}
        command = [sys.executable, "-m", "cli.main", "reward", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    return _podium


def test_a_good_reward_passes_with_a_table_and_its_logs(podium, write, data):
    ran = podium("test", write(EXACT), "--data", data)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert lines[:3] == ["loads: yes", "columns: needs answer", "rows: 8"]
    assert "case sent scored mean least most" in lines
    assert "gold: answer, text 20 8/8 1 1 1" in lines
    assert "empty 8/8 0 0 0" in lines
    assert "same input twice: same values" in lines
    assert lines[-1] == "asked"
    assert any(line.startswith("passed in ") for line in lines)


def test_flags_are_shown_with_their_fix_and_only_errors_fail(podium, write, data):
    ran = podium("test", write("def reward(completion, answer): return 1.0"), "--data", data)
    assert ran.returncode == 0
    assert "warning  pays_for_empty\n  An empty completion gets 1 on average" in ran.stdout
    assert "  fix: Return 0 when" in ran.stdout


def test_a_missing_column_fails(podium, write, data):
    ran = podium("test", write("def reward(completion, answr): return 1.0"), "--data", data)
    assert ran.returncode == 1
    assert "missing: answr" in ran.stdout
    assert "Did you mean `answer`?" in ran.stdout


def test_what_does_not_load_fails_with_its_line(podium, write):
    ran = podium("test", write("def reward(completion):\n    return 1 +\n"))
    assert ran.returncode == 1
    assert "loads: no" in ran.stdout
    assert "line 2" in ran.stdout


def test_completions_are_graded_on_the_first_row_or_as_many_as_asked(podium, write, data):
    source = write("def reward(completion, answer):\n    return float(int(completion) == int(answer))")
    ran = podium("test", source, "--data", data, "--completion", "20", "--completion", "x")
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert {"20 1 scored 1", "x 1 user_error -"} <= set(lines)
    assert "ValueError: invalid literal" in ran.stdout
    ran = podium("test", source, "--data", data, "--completion", "21", "--rows", 2, "--json")
    graded = json.loads(ran.stdout)["completions"]
    assert [(one["line"], one["value"]) for one in graded] == [(1, 0.0), (2, 1.0)]


def test_the_report_is_there_as_json(podium, write):
    answer = json.loads(podium("test", write(EXACT), "--json").stdout)
    report = ProbeReport.model_validate(answer["report"])
    assert (report.loads, report.synthetic) == (True, True)
    assert FlagCode.GOLD_NOT_TRIED in {flag.code for flag in report.flags}


def test_entry_point_and_form_choose_the_function(podium, write, data):
    source = write("def f(completion, answer): return float(completion[0]['content'] == answer)\n" + EXACT)
    chat = data.with_name("chat.jsonl")
    rows = ({"prompt": [{"role": "user", "content": "?"}], "answer": str(n)} for n in range(20, 24))
    chat.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = podium("test", source, "--data", chat, "--entry-point", "f", "--form", "verifiers", "--json")
    report = ProbeReport.model_validate(json.loads(ran.stdout)["report"])
    assert (ran.returncode, report.gold.recognised) == (0, True)


def test_bad_data_is_an_error_with_its_line(podium, write, data):
    data.write_text('{"prompt": "?", "answer": 1}\n{"answer": 2}\n')
    ran = podium("test", write(EXACT), "--data", data)
    assert ran.returncode == 1
    assert "error: The file is not valid: line 2" in ran.stderr
    assert "fix: " in ran.stderr


def test_the_operator_may_do_without_a_sandbox(podium, write, data):
    source = write(f"import os\ndef reward(completion, answer): return float(os.path.exists({str(data)!r}))")
    inside = podium("test", source, "--completion", "x", "--json")
    outside = podium("test", source, "--completion", "x", "--json", PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX="true")
    values = [json.loads(ran.stdout)["completions"][0]["value"] for ran in (inside, outside)]
    assert values == [0.0, 1.0]


def test_the_forms_are_listed(podium):
    shown = podium("forms").stdout
    assert all(form in shown and rule.signature in shown for form, rule in FORMS.items())


def test_every_row_has_time_of_its_own(podium, write, data):
    source = write(
        "def reward(completion, answer):\n    while answer in ('20', '21', '22', '23'): pass\n    return 1.0"
    )
    arguments = ("--data", data, "--completion", "x", "--rows", 10, "--deadline", 2, "--json")
    graded = json.loads(podium("test", source, *arguments).stdout)["completions"]
    assert [one["value"] for one in graded] == [None] * 4 + [1.0] * 6


def test_the_rows_that_are_probed_are_spread_over_the_first(podium, write, data):
    source = write("def reward(completion, answer):\n    print(f'<{answer}>')\n    return float(completion == answer)")
    output = json.loads(podium("test", source, "--data", data, "--json").stdout)["report"]["output"]
    assert "<28>" in output, "of the ten, the first eight would end with 27"


def test_what_a_reward_raises_does_nothing_to_the_terminal(podium, write):
    ran = podium("test", write("raise ValueError('\x1b[2J')\ndef reward(completion): return 1.0"))
    assert ran.returncode == 1
    assert "\x1b" not in ran.stdout
