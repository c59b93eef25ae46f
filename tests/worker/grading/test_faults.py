"""The short form of `podium bench grader_faults`."""

from bench.grader_faults import EXPECTED, inject, plan
from worker.grading.grades import GradeOutcome


def test_no_fault_becomes_a_number_and_every_one_is_counted():
    planned = plan(faults=120, hangs=4, seed=1)
    rows = {row["injected"]: row for row in inject(planned)}
    assert set(rows) == {"good", *EXPECTED}
    assert [row for row in rows.values() if row["unexpected"]] == []
    assert sum(row["rollouts"] for row in rows.values()) == len(planned) == 144
    assert rows["good"][GradeOutcome.SCORED] == 24
    for kind, outcome in EXPECTED.items():
        assert rows[kind][outcome] == rows[kind]["rollouts"] > 0
