"""What of a run taught, as clients see it."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.jobs.replies import Reply
from core.taught import Bill, Prompts, Window

EXAMPLE: JsonDict = {
    "object": "fine_tuning.job.learning",
    "job_id": "ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
    "prompts": {
        "seen": 5,
        "ever_mixed": {"prompts": 2, "rows": [17, 204]},
        "always_right": {"prompts": 1, "rows": [3]},
        "always_wrong": {"prompts": 1, "rows": [88]},
        "never_mixed": {"prompts": 1, "rows": [41]},
    },
    "windows": [
        {
            "from_step": 1,
            "to_step": 6,
            "groups": 48,
            "mixed": 31,
            "all_right": 15,
            "all_wrong": 2,
            "prompts": 48,
            "mixed_prompts": 31,
        }
    ],
    "bill": {
        "seconds": 240.0,
        "without_gradient_s": 60.0,
        "generation_s": 57.0,
        "reward_s": 2.0,
        "passes_s": 0.0,
        "other_s": 1.0,
        "share": 0.25,
        "spared_s": 91.0,
    },
    "usd_without_gradient": 0.0433,
}


class LearningReply(Reply):
    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [EXAMPLE]})

    object: Literal["fine_tuning.job.learning"] = "fine_tuning.job.learning"
    job_id: str
    prompts: Prompts
    windows: list[Window] = Field(description="The steps in ten parts, in order; one a step where there are fewer.")
    bill: Bill | None = Field(description="Null before the first step.")
    usd_without_gradient: float | None = Field(
        description="`bill.without_gradient_s` of all its GPUs, "
        "at the price of one per hour (PODIUM_GPU_PRICE_USD_PER_HOUR)."
    )
