"""What is told of rewards' output, and what of it is missing."""

from pathlib import Path

from tests.factories import make_reward
from worker.grading.client import Grader
from worker.grading.process import LOG_BYTES
from worker.run_directory import Notice, RunDirectory
from worker.training.grader_log import MOST_CHARS, GraderLog
from worker.training.rewards import Rewards


def test_output_that_is_lost_is_counted_in_its_own_notice(tmp_path: Path) -> None:
    run, grader = RunDirectory(tmp_path), Grader(Path())
    grader_log = GraderLog(Rewards({"chatty": grader}, [make_reward("chatty")]), run)
    for written in (LOG_BYTES + 1000, 10):
        grader.output.add(b"x" * written)
        grader_log.tell(0, now=True)
    notices = [entry for entry, _ in run.read_journal() if isinstance(entry, Notice)]
    missing = [(notice.data["left_out_chars"], notice.data["lost_bytes"]) for notice in notices]
    assert missing == [(LOG_BYTES - MOST_CHARS, 1000), (0, 0)]
