"""How a signal probe's report reads in a terminal."""

from collections.abc import Sequence

from typer.testing import CliRunner

from cli.main import app
from cli.signal_probes import ReportView, report_lines
from tests.signal_reports import ALWAYS, MIXED, NEVER, make_report

RARE = [1.0, 0.0, 0.0, 0.0]


def lines(*groups: Sequence[float | None]) -> list[str]:
    return list(report_lines(ReportView.model_validate_json(make_report(*groups).model_dump_json())))


def test_the_histogram_has_a_bar_for_each_bin_that_shows_its_prompts():
    shown = lines(ALWAYS, ALWAYS, ALWAYS, RARE, NEVER)
    start = shown.index("pass rate      prompts")
    assert shown[start + 1 : start + 13] == [
        "never             1  #",
        "0% to 10%         0",
        "10% to 20%        0",
        "20% to 30%        1  #",
        "30% to 40%        0",
        "40% to 50%        0",
        "50% to 60%        0",
        "60% to 70%        0",
        "70% to 80%        0",
        "80% to 90%        0",
        "90% to 100%       0",
        "always            3  ###",
    ]


def test_long_bars_are_drawn_to_scale():
    shown = lines(*[ALWAYS] * 80, *[MIXED] * 39, NEVER)
    bars = {line.split()[0]: line.count("#") for line in shown if "#" in line}
    assert bars == {"never": 1, "40%": 20, "always": 40}, "and the smallest is not lost"


def test_group_sizes_say_which_is_the_jobs_and_which_is_only_extrapolated():
    shown = lines(ALWAYS, MIXED)
    start = shown.index("group size     silent  95 % interval  completions per group with signal")
    assert shown[start + 1] == "4                 50%  9% to 91%      8       the job's"
    assert shown[start + 2].endswith("extrapolated")


def test_advice_comes_with_its_fix_and_the_first_rows():
    shown = lines(*[ALWAYS] * 20, MIXED)
    at = shown.index("info  drop_solved_prompts")
    assert shown[at + 1].startswith("  20 of 21 prompts were solved by all 4 completions")
    assert shown[at + 2].startswith("  fix: Leave such rows out.")
    assert shown[at + 3] == "  rows: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 8 more"


def test_a_file_that_is_no_job_is_refused_before_anything_is_sent(tmp_path):
    missing = CliRunner().invoke(app, ["signal-probe", str(tmp_path / "none.json"), "--url", "http://127.0.0.1:9"])
    assert missing.exit_code == 1
    assert "cannot be read as JSON" in missing.stderr
    (tmp_path / "list.json").write_text("[]")
    wrong = CliRunner().invoke(app, ["signal-probe", str(tmp_path / "list.json")])
    assert "does not hold a JSON object" in wrong.stderr
