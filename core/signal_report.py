"""What a signal probe found: how many of a job's groups would teach something, told before the job is paid for.

Its JSON Schema is published: `python -m core.signal_report > docs/signal-report.schema.json` writes it again.
"""

import json
import sys
from enum import StrEnum
from typing import Final, Literal

from pydantic import Field

from core.results import SCHEMA_DIALECT, Environment, Frozen, PhaseSeconds

SCHEMA_VERSION: Final = 1
DEFAULT_PROMPTS = 32
"""With so many the 95 % interval of a share is at most 33 points wide."""
MOST_PROMPTS = 512


class ProbeSize(Frozen):
    prompts: int = Field(ge=1, le=MOST_PROMPTS)
    """Rows that are asked for; a file that trains on fewer is probed whole."""
    samples: int = Field(ge=2, le=64)
    """Completions of each: the group."""


class FlatReason(StrEnum):
    """Why no rewards of a group differ, so that it teaches nothing."""

    ALL_PASSED = "all_passed"
    """All equal, and at or above the pass threshold."""
    ALL_FAILED = "all_failed"
    """All equal, below the threshold, and without any credit: 0 or less."""
    ALL_EQUAL_PARTIAL = "all_equal_partial"
    """All equal, below the threshold, with some credit: the reward does not tell the completions apart."""
    UNGRADED = "ungraded"
    """No completion has a reward."""
    SINGLE_GRADED = "single_graded"
    """One completion has a reward, and nothing to be compared with."""


class FlatCause(StrEnum):
    """What the completions of a flat group show of the cause."""

    IDENTICAL_COMPLETIONS = "identical_completions"
    """All are the same text."""
    ALL_TRUNCATED = "all_truncated"
    """All were cut at max_completion_length."""


class AdviceCode(StrEnum):
    CONSTANT_REWARD = "constant_reward"
    GRADING_ERRORS = "grading_errors"
    GATED_ERRORS = "gated_errors"
    NO_ANSWER = "no_answer"
    RAISE_MAX_COMPLETION_LENGTH = "raise_max_completion_length"
    SAMPLING_COLLAPSED = "sampling_collapsed"
    FIX_FORMAT = "fix_format"
    TOO_EASY = "too_easy"
    TOO_HARD = "too_hard"
    DROP_SOLVED_PROMPTS = "drop_solved_prompts"
    DROP_UNSOLVED_PROMPTS = "drop_unsolved_prompts"
    COARSE_REWARD = "coarse_reward"
    BIGGER_GROUP = "bigger_group"
    GOOD_TO_GO = "good_to_go"


class Advice(Frozen):
    code: AdviceCode
    severity: Literal["error", "warning", "info"]
    """`error`: the job would not learn, or would pause at once."""
    message: str
    fix: str
    rows: tuple[int, ...] = ()
    """Lines of the training file that it is about."""


class ProbedPrompt(Frozen):
    """One group."""

    row: int
    """Line of the training file."""
    rewards: tuple[float | None, ...]
    """Of each completion; null where it could not be graded, or no reward applied."""
    passed: int
    """Completions at or above the pass threshold."""
    flat: FlatReason | None
    causes: tuple[FlatCause, ...]
    prompt_tokens: int
    mean_completion_tokens: float
    truncated: int
    """Completions cut at max_completion_length."""


class PassRateBin(Frozen):
    """Prompts whose pass rate is above `low` and at most `high`; at 0 and at 1 a bin of its own."""

    low: float
    high: float
    prompts: int


class SizeEstimate(Frozen):
    """What to expect of groups of another size."""

    num_generations: int
    silent_share: float
    silent_share_ci95: tuple[float, float]
    """Over the prompts, Wilson's score interval of the expected number of silent groups, rounded outwards: a mean of
    chances varies no more than one of zeros and ones. Of an `extension` the upper end is that of the probed size, which
    holds whatever the unknown rates are: a larger group is never silent more often."""
    estimator: Literal["subsets", "extension"]
    """`subsets`, up to the probed size: the share of a group's subsets of this size that are flat (hypergeometric,
    unbiased). `extension`, beyond it: the chance that a flat group stays flat when so many more completions are drawn,
    each equal to the others with the group's unknown rate, for which Jeffreys' prior stands (beta-binomial)."""
    completions_per_signal: float | None
    """Completions that one group with signal costs; null when none is expected."""


class ProbedReward(Frozen):
    """How one reward term graded the completions."""

    name: str
    mean: float | None
    least: float | None
    most: float | None
    full_share: float | None
    """Share of the scored completions that got its best value."""
    scored: int
    no_answer: int
    user_errors: int
    infrastructure_errors: int
    blanked: int
    """Completions that its errors left without a reward: behind a closed gate they cost nothing."""
    timed_out: int
    last_error: str | None


class SignalReport(Frozen):
    schema_version: Literal[1] = SCHEMA_VERSION
    sentence: str
    """The result in one plain sentence."""
    advice: tuple[Advice, ...]
    """What matters most first."""
    prompts: int
    """How many were probed: rows of the training file, drawn at random with the job's seed."""
    training_rows: int
    """Out of how many."""
    samples: int
    num_generations: int
    """The job's own group size."""
    seed: int
    temperature: float
    top_p: float
    max_completion_length: int
    pass_threshold: float
    graded_groups: int
    """Groups with at least one reward: what shares are taken of, as `signal/silent_share` of a run."""
    silent_groups: int
    """Those of them without reward variance."""
    silent_share: float | None
    """The share to expect of groups of `samples` completions; null when nothing was graded."""
    silent_share_ci95: tuple[float, float] | None
    """Wilson's score interval, over the prompts."""
    flat: dict[FlatReason, int]
    """Groups by reason."""
    causes: dict[FlatCause, int]
    pass_rates: tuple[PassRateBin, ...]
    """Over the graded groups: how often each prompt was solved."""
    mean_pass_rate: float | None
    mean_reward: float | None
    sizes: tuple[SizeEstimate, ...]
    """By size, the job's own and the probed one among them."""
    ungraded: int
    """Completions without a reward."""
    failed: int
    """Those of them that an error of any term left so: what the job's own rule on errors counts."""
    truncated_share: float
    mean_prompt_tokens: float
    mean_completion_tokens: float
    rewards: tuple[ProbedReward, ...]
    groups: tuple[ProbedPrompt, ...]
    """In the order of the file."""
    time: PhaseSeconds
    """Of the process that held the GPU; sampling and grading are `evaluation`."""
    environment: Environment


def json_schema() -> str:
    """The published schema of `SignalReport`, as text."""
    schema = {"$schema": SCHEMA_DIALECT} | SignalReport.model_json_schema(mode="serialization")
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
