"""Held-out evaluations of jobs, and verdicts on any two of them, as clients see them."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.jobs.replies import Reply
from core.results import Decoding, EvaluationScore, Verdict

EXAMPLE: JsonDict = {
    "object": "fine_tuning.job.comparison",
    "before": {"job_id": "ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d", "evaluation": "baseline", "step": 0},
    "after": {"job_id": "ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d", "evaluation": "step-50", "step": 50},
    "verdict": {
        "decoding": "greedy",
        "outcome": "improved",
        "sentence": "Improved: 40 of 200 tasks fixed, 4 broken (p = 1.2e-08), +18.0 points.",
        "tasks": 200,
        "fixed": 40,
        "broken": 4,
        "same": 156,
        "p_value": 1.2e-08,
        "change_points": 18.0,
        "mean_reward_change": 0.11,
        "mean_reward_change_ci95": [0.07, 0.15],
        "smallest_significant_fixed": 6,
    },
}


class EvaluationList(Reply):
    object: Literal["list"] = "list"
    decoding: Decoding | None = Field(
        description="Which of the two scores the job is judged by; null: this version cannot read the job's spec."
    )
    best: str | None = Field(
        description="The evaluation with the highest mean held-out reward so far, the earliest of equals. It is chosen "
        "among all, so its score flatters: the verdict uses `final`. Null: none can be ranked yet."
    )
    data: list[EvaluationScore] = Field(description="In the order in which they were taken; the baseline is the first.")


class Side(Reply):
    job_id: str
    evaluation: str
    step: int


class Comparison(Reply):
    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [EXAMPLE]})

    object: Literal["fine_tuning.job.comparison"] = "fine_tuning.job.comparison"
    before: Side
    after: Side
    verdict: Verdict
