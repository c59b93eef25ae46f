"""Tells of learning findings while the run goes: a warning when one appears, and a word when it has healed.

What was told is read from the event log, under the lease, in the transaction that tells more. So a finding is told
once, however often the run is resumed or a commit's answer is lost.
"""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from core.db import learning, leases
from core.db.leases import Lease
from core.db.session import Sessions
from core.learning.finding import FindingKey, LearningFinding, Severity
from core.learning.findings import learning_findings
from core.learning.numbers import HeldOutScore, RunNumbers, StepNumbers
from core.run_facts import asked_of

HEALED_AFTER_STEPS = 10
"""So long a finding must be gone before it is called healed: near its threshold it would come and go."""


class LearningWatch:
    """Of one attempt. It keeps the numbers that it has read, so that a look costs what is new."""

    def __init__(self, sessions: Sessions, lease: Lease) -> None:
        self._sessions = sessions
        self._lease = lease
        self._steps: list[StepNumbers] = []
        self._scores: list[HeldOutScore] = []
        self._judged = 0
        """The last step of those that were judged, with all that there was to tell told."""
        self._open: dict[FindingKey, int] = {}
        """The findings that were told: the last step at which each was found, by this attempt or an earlier one. Steps
        that are done again before it say nothing of its healing.
        """

    def look(self) -> None:
        """Judge the steps that are in the ledger, if there are new ones. Raises `LeaseLost` when there is news.

        Whatever fails on the way, the ledger too, the next look begins from what had been done.
        """
        with self._sessions() as session:
            self._read(session)
        if not self._steps or self._steps[-1].step == self._judged:
            return
        found = {
            finding.key: finding
            for finding in learning_findings(RunNumbers(self._steps, self._scores, asked_of(self._lease.spec)))
            if finding.severity is not Severity.INFO
        }
        step = self._steps[-1].step
        self._open |= {key: max(step, self._open[key]) for key in found.keys() & self._open.keys()}
        if found.keys() - self._open.keys() or self._healed(step):
            self._tell(found, step)
        self._judged = step

    def _read(self, session: Session) -> None:
        """All of what is new, or nothing of it."""
        job_id, is_first = self._lease.job_id, not self._steps
        steps = learning.new_steps(session, job_id, after=0 if is_first else self._steps[-1].step)
        if not steps:
            return
        known = [score.name for score in self._scores]
        scores = learning.new_scores(session, job_id, self._lease.spec, known=known)
        if is_first:
            self._open = learning.open_findings(session, job_id)
        self._steps = [*self._steps, *steps][-learning.MOST_STEPS :]
        self._scores += scores

    def _healed(self, step: int) -> set[FindingKey]:
        return {key for key, last in self._open.items() if step - last >= HEALED_AFTER_STEPS}

    def _tell(self, found: Mapping[FindingKey, LearningFinding], step: int) -> None:
        job_id, healed = self._lease.job_id, self._healed(step)
        with self._sessions.begin() as session:
            leases.hold(session, self._lease)
            told = learning.open_findings(session, job_id).keys()
            for key in (key for key in found if key not in told):
                learning.tell_finding(session, job_id, found[key], step=step)
            for key in (key for key in self._open if key in healed & told):
                learning.tell_healed(session, job_id, key, step=step)
        still = {key: last for key, last in self._open.items() if key not in healed}
        self._open = dict.fromkeys(found, step) | still
