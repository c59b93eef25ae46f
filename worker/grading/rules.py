"""What the operator decides about grading. It crosses from the supervisor's settings to the trainer in two variables,
which have the settings' own names: a person who runs a grader by hand sets the same.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from worker.grading.limits import DEFAULT_MEMORY_BYTES

UNSAFE_VARIABLE = "PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX"
MEMORY_VARIABLE = "PODIUM_REWARD_MEMORY_BYTES"
PRIVATE_URLS_VARIABLE = "PODIUM_ALLOW_PRIVATE_REWARD_URLS"
_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class GradingRules:
    run_without_sandbox: bool = False
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Of all processes of one sandbox."""
    allow_private_reward_urls: bool = False
    """Whether `http` rewards may ask hosts of the operator's own network."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        return cls(
            run_without_sandbox=environment.get(UNSAFE_VARIABLE, "").lower() in _TRUE,
            memory_bytes=int(environment.get(MEMORY_VARIABLE, DEFAULT_MEMORY_BYTES)),
            allow_private_reward_urls=environment.get(PRIVATE_URLS_VARIABLE, "").lower() in _TRUE,
        )

    def as_environment(self) -> dict[str, str]:
        return {
            UNSAFE_VARIABLE: "true" if self.run_without_sandbox else "false",
            MEMORY_VARIABLE: str(self.memory_bytes),
            PRIVATE_URLS_VARIABLE: "true" if self.allow_private_reward_urls else "false",
        }
