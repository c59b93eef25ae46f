"""What a running job is doing at this moment: written on its row with each renewal of the lease, shown by the API.

A worker says how long something has lasted, and the database since when: whoever compares that with another time of the
ledger compares one clock with itself.
"""

from pydantic import BaseModel, ConfigDict


class Activity(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    phase: str
    """A phase of the trainer (`generation`, `reward`, ...), or what its supervisor does before and after it:
    `fetching_inputs`, `starting_trainer`, `uploading`, `publishing`."""
    for_s: float
    """How long that had lasted when it was said."""
    step: int | None = None
    """The optimizer step that is being made."""
    longest_s: float | None = None
    """How long this phase has taken at most in this attempt, once it has ended at least once."""
    deadline_s: float | None = None
    """After this long the watchdog ends the trainer and says why; null where nobody watches."""
    waiting_for: str | None = None
    """The part that does not answer: `ledger` or `store`."""


class DatedActivity(Activity):
    """As it stands on the job's row."""

    since: float
    """Unix seconds, the database's clock."""
