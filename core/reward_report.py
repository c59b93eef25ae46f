"""What the probe of a reward found: the document that is stored with a version, and shown.

`worker.grading.probing` writes it; docs/rewards.md says what each flag means and what to do about it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

REPORT_VERSION: Final = 1
FIRST_ROWS: Final = 32
"""Of a data set. The rows that a probe uses are spread evenly over these, wherever it runs."""


class ProbeCase(StrEnum):
    """What a reward was shown in place of a model's completion."""

    CONSTANT = "constant"
    """The same wrong sentence for every row."""
    EMPTY = "empty"
    ECHO = "echo"
    """The prompt again."""
    FORMAT_ONLY = "format_only"
    """The usual forms of an answer, with nothing or a wrong answer in them."""
    MARKUP = "markup"
    """A wrong answer, and text that aims at the parser or the judge."""
    NON_UTF8 = "non_utf8"
    """What broken bytes decode to, control characters, digits that `int` refuses."""
    VERY_LONG = "very_long"
    """The constant, over and over."""
    OTHER_ANSWER = "other_answer"
    """The gold answer of another row, in the form that gold was found in."""
    EVERY_ANSWER = "every_answer"
    """The gold answers of all rows in one text."""
    GOLD = "gold"


class Wrapping(StrEnum):
    """How a gold answer was written down."""

    TEXT = "text"
    """As the column has it; objects and lists as JSON."""
    SENTENCE = "sentence"
    ANSWER_TAGS = "answer_tags"
    BOXED = "boxed"
    HASHES = "hashes"
    JSON_ANSWER = "json_answer"
    THINK_ANSWER = "think_answer"
    """R1's form: thoughts in `<think>`, the answer in `<answer>`."""


class FlagLevel(StrEnum):
    ERROR = "error"
    """The reward cannot be trained on as it is."""
    WARNING = "warning"
    """A policy will find this before it finds the answer, or the numbers will mislead."""
    INFO = "info"


class FlagCode(StrEnum):
    DOES_NOT_LOAD = "does_not_load"
    MISSING_COLUMN = "missing_column"
    NEVER_SCORES = "never_scores"
    PREFERS_JUNK_TO_GOLD = "prefers_junk_to_gold"
    PAYS_FOR_EMPTY = "pays_for_empty"
    PAYS_FOR_ECHO = "pays_for_echo"
    PAYS_FOR_CONSTANT = "pays_for_constant"
    PAYS_FOR_FORMAT_ONLY = "pays_for_format_only"
    PAYS_FOR_NON_UTF8 = "pays_for_non_utf8"
    PAYS_FOR_OTHER_ANSWER = "pays_for_other_answer"
    PAYS_FOR_EVERY_ANSWER = "pays_for_every_answer"
    PAYS_FOR_LENGTH = "pays_for_length"
    FOOLED_BY_MARKUP = "fooled_by_markup"
    ALWAYS_THE_SAME = "always_the_same"
    UNSTABLE = "unstable"
    SLOW = "slow"
    ERRORS_ON_CONSTANT = "errors_on_constant"
    ERRORS_ON_EMPTY = "errors_on_empty"
    ERRORS_ON_ECHO = "errors_on_echo"
    ERRORS_ON_FORMAT_ONLY = "errors_on_format_only"
    ERRORS_ON_MARKUP = "errors_on_markup"
    ERRORS_ON_NON_UTF8 = "errors_on_non_utf8"
    ERRORS_ON_VERY_LONG = "errors_on_very_long"
    ERRORS_ON_OTHER_ANSWER = "errors_on_other_answer"
    ERRORS_ON_EVERY_ANSWER = "errors_on_every_answer"
    ERRORS_ON_GOLD = "errors_on_gold"
    GOLD_NOT_RECOGNISED = "gold_not_recognised"
    GOLD_NOT_TRIED = "gold_not_tried"
    OUT_OF_TIME = "out_of_time"


class ProbeStatus(StrEnum):
    PASSED = "passed"
    """Nothing worse than information."""
    FLAGGED = "flagged"
    """There are warnings."""
    FAILED = "failed"
    """There are errors."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Flag(Frozen):
    code: FlagCode
    level: FlagLevel
    message: str
    """One sentence, with the numbers."""
    fix: str


class MissingColumn(Frozen):
    name: str
    nearest: tuple[str, ...]
    """Columns of the data with much the same name, the nearest first."""


class Columns(Frozen):
    """The reward's parameters, and the data's columns."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_any: bool
    """Whether every column reaches the reward."""
    missing: tuple[MissingColumn, ...]


class Outcomes(Frozen):
    """How many gradings ended in which way."""

    scored: int
    no_answer: int
    user_error: int
    infrastructure_error: int
    timed_out: int
    """Of the infrastructure errors: those without an answer in time."""

    @property
    def errors(self) -> int:
        return self.user_error + self.infrastructure_error


class CaseResult(Frozen):
    """One text for each row, and what the reward made of them."""

    case: ProbeCase
    variant: str | None
    """Which of several texts of this case."""
    sent: str
    """The beginning of what the first row was sent."""
    outcomes: Outcomes
    """Of one grading for each row."""
    mean: float | None
    """Of the scored ones, as the two below; null where there is none."""
    least: float | None
    most: float | None
    messages: tuple[str, ...]
    """What went wrong, each once, the first few."""


class Gold(Frozen):
    """The guess at a right answer that the reward liked best."""

    column: str
    """Where the answer was taken from: a column, or `column.field`."""
    wrapping: Wrapping
    recognised: bool
    """Whether it scored higher than a wrong answer in the same wrapping: that of another row, where they differ."""
    candidates: int
    """How many guesses were tried: columns times wrappings."""
    result: CaseResult


class Latency(Frozen):
    """Of one completion inside the reward; the first call, which loads things, is left out."""

    median_s: float
    max_s: float


class ProbeReport(Frozen):
    version: Literal[1] = REPORT_VERSION
    status: ProbeStatus
    loads: bool
    load_error: str | None = None
    load_raised: bool | None = None
    """Of a source that does not load: whether Python says why. Otherwise its process crashed or hung, twice, which may
    be for want of memory or time on the machine."""
    columns: Columns | None = None
    """Null where the source could not be read."""
    rows: int = 0
    """How many rows were used, at most: costly cases are tried on fewer."""
    synthetic: bool = False
    """The rows were made up, because there was no data. Gold cannot be judged then."""
    cases: tuple[CaseResult, ...] = ()
    gold: Gold | None = None
    stable: bool | None = None
    """Whether the same inputs got the same values twice; null where that was not tried."""
    latency: Latency | None = None
    not_tried: tuple[ProbeCase, ...] = ()
    """For want of time."""
    flags: tuple[Flag, ...] = ()
    """The worst first."""
    output: str = ""
    """The end of what the reward wrote to standard output and error."""
    seconds: float
    """That the probe took."""


def status_of(flags: Sequence[Flag]) -> ProbeStatus:
    levels = {flag.level for flag in flags}
    if FlagLevel.ERROR in levels:
        return ProbeStatus.FAILED
    return ProbeStatus.FLAGGED if FlagLevel.WARNING in levels else ProbeStatus.PASSED
