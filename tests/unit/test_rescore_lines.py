"""How a rescore reads in a terminal."""

from cli.rescoring import ReportView, report_lines
from core.rescoring import Regraded, compare, evaluation_change


def regraded(old: float | None, new: float | None, index: int, error: str | None = None) -> Regraded:
    return Regraded(
        step=3, index=index, group=0, row=7, prompt="p", completion=f"answer\n{index}", old=old, new=new, error=error
    )


def test_a_report_of_the_server_reads_as_a_person_would_ask():
    ones = [regraded(0.0, 1.0, 0), regraded(1.0, 0.0, 1), regraded(0.5, None, 2, "ValueError: oh")]
    final = evaluation_change("final", 9, [(0.0, 1.0)], errors=0, threshold=1.0)
    report = compare(ones, threshold=1.0, left_out=4, evaluations=(final,))
    lines = list(report_lines(ReportView.model_validate_json(report.model_dump_json())))
    assert lines == [
        "graded    3 rollouts of 1 steps; 1 errors, 0 without reward, 4 left out",
        "          last error: ValueError: oh",
        "mean      0.500 -> 0.500",
        "order     Kendall's tau-b -1.000 over 1 groups; 1 of 1 pairs change their order",
        "flat      0.000 -> 0.000 of the groups teach nothing",
        "verdicts  1 failed now pass, 1 passed now fail, of 2",
        "final     0.000 -> 1.000 over 1 answers; 1 failed now pass, 0 passed now fail, of 1; 0 errors",
        "  step 3, row 7: 0.000 -> 1.000  answer 0",
        "  step 3, row 7: 1.000 -> 0.000  answer 1",
    ]


def test_an_empty_report_has_no_order_to_tell():
    report = compare([], threshold=1.0)
    lines = list(report_lines(ReportView.model_validate_json(report.model_dump_json())))
    assert lines[1] == "mean      none -> none"
    assert not any(line.startswith("order") for line in lines)
