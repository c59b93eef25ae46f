"""What a task is given to work with."""

from dataclasses import dataclass
from pathlib import Path

from core.db.session import Sessions
from core.ids import TenantId
from core.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Workplace:
    """Of one process of the grading worker."""

    sessions: Sessions
    store: ObjectStore


@dataclass(frozen=True, slots=True)
class Context:
    """Of one task."""

    place: Workplace
    tenant_id: TenantId
    """Whose task it is: files and rewards are looked up for this tenant."""
    folder: Path
    """Private, empty, and removed afterwards."""
    time_s: float
    """How long the task may take, from its start."""
