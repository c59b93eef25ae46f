"""What `podium bench sampling` makes of its runs."""

from bench.sampling import CASES, WITHOUT, Run, Step, row


def run(seconds: float, rates: dict[int, float], wasted_s: float = 0.0) -> Run:
    return Run([Step(number, seconds, 64) for number in range(1, 11)], rates, wasted_s)


def test_a_score_is_reached_with_the_first_evaluation_that_has_it() -> None:
    rates = {0: 0.9, 10: 0.95, 5: 0.8, 2: 0.5}
    assert run(1.5, rates).reach(0.8) == Step(5, 7.5, 320), "before any step there was nothing to take"
    assert run(1.5, rates).reach(0.96) is None


def test_ratios_are_those_of_the_same_round() -> None:
    slow, fast = run(4.0, {5: 0.8}), run(1.0, {5: 0.8})
    runs = {case: [slow, fast, fast] for case in CASES} | {"both": [fast, run(2.0, {5: 0.8}), fast]}
    found = row(runs, "both", 0.8)
    assert (found["ratio"], found["ratio_min"], found["ratio_max"], found["seconds"]) == (1.0, 0.25, 2.0, 5.0)


def test_what_was_missed_in_one_round_has_no_figure() -> None:
    reached, missed = run(1.0, {5: 0.8}), run(1.0, {5: 0.7})
    runs = {case: [reached, reached] for case in CASES} | {"both": [reached, missed]}
    found = row(runs, "both", 0.8)
    assert (found["reached"], found["seconds"], found["ratio"]) == (1, "-", "-")
    without = row({**runs, WITHOUT: [reached, missed]}, "dynamic", 0.8)
    assert (without["reached"], without["seconds"], without["ratio"]) == (2, 5.0, "-")


def test_final_score_and_bill_are_of_whole_runs() -> None:
    rounds = [run(1.0, {5: 0.8, 10: 0.9}, 4.0), run(2.0, {10: 0.7, 5: 0.95}, 6.0), run(3.0, {5: 0.1, 10: 0.8}, 1.0)]
    found = row(dict.fromkeys(CASES, rounds), "trl", 0.99)
    assert (found["final"], found["bill_s"], found["wasted_s"], found["seconds"]) == (0.8, 20.0, 4.0, "-")
