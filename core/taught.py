"""What of a run taught, as `results.json` and the API say it."""

from pydantic import BaseModel, ConfigDict, Field

MOST_ROWS = 1000
"""Lines that are listed of a kind of prompts; the counts are of all."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PromptKind(Frozen):
    prompts: int
    rows: tuple[int, ...] = Field(description=f"Their lines in the training file; the first {MOST_ROWS}.")


class Prompts(Frozen):
    """The prompts that were trained on, by what their groups of completions were worth."""

    seen: int
    ever_mixed: PromptKind = Field(description="Completions of at least one group disagreed: these could teach.")
    always_right: PromptKind = Field(description="Every group all right, and all the same.")
    always_wrong: PromptKind = Field(description="Every group below the pass threshold, and all the same.")
    never_mixed: PromptKind = Field(description="Right in some groups and wrong in others, and never within one.")


class Window(Frozen):
    """A part of the steps."""

    from_step: int
    to_step: int
    groups: int = Field(description="Those that could be graded.")
    mixed: int
    all_right: int
    all_wrong: int
    prompts: int = Field(description="Different prompts.")
    mixed_prompts: int = Field(description="Those of which a group was mixed.")


class Bill(Frozen):
    """Seconds of the training stage that were paid for silent groups. Shares are by groups: all have as many rollouts,
    and their lengths differ little.
    """

    seconds: float = Field(description="All of the training stage, with its evaluations and checkpoints.")
    without_gradient_s: float = Field(description="The sum of the four that follow.")
    generation_s: float = Field(description="Generating completions of silent groups. The fast path cannot spare it.")
    reward_s: float = Field(description="Grading them. Nor that: only grades show that they are silent.")
    passes_s: float = Field(description="Forward and backward passes over them; 0 where the fast path left them out.")
    other_s: float = Field(description="The rest of the steps whose gradient was exactly 0.")
    share: float = Field(description="without_gradient_s of seconds.")
    spared_s: float | None = Field(
        description="An estimate, no part of the bill: what passes over the silent groups would have taken at the "
        "rate of the others, where the fast path left them out. Null where no group taught anything."
    )


class Taught(Frozen):
    prompts: Prompts
    windows: tuple[Window, ...] = Field(description="The steps in ten parts, in order.")
    bill: Bill | None = Field(description="Null before the first step.")
