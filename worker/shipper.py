"""Carries facts from the run directory into the ledger and the store, under the job's lease.

Metrics, events and evaluations go row by row from the journal. Checkpoints go in the background, objects first and
the row last, so that a slow store delays neither the numbers nor the training.
"""

import contextvars
import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice

import structlog
from sqlalchemy.orm import Session

from core.db import events, leases, progress
from core.db.leases import Lease
from core.db.session import LEDGER_AWAY, Sessions
from core.failpoints import failpoint
from core.storage.store import ObjectStore, StoreError, StoreMisconfigured
from worker import checkpoints
from worker.audit import ResumeAudit
from worker.learning_watch import LearningWatch
from worker.records import on_record, rows_by_outcome
from worker.run_directory import (
    CheckpointSaved,
    CheckpointScored,
    EvaluationDone,
    JournalEntry,
    Notice,
    RolloutsDone,
    RunDirectory,
    StageStarted,
    StepDone,
)

log = structlog.get_logger()

ENTRIES_PER_TRANSACTION = 50
REMEMBERED_UPLOADS = 5
RELEASE_BYTES = 8 * 1024 * 1024
"""The disk gets back what was shipped of the journal in pieces of this size."""


class Shipper:
    """Ships one run. `ship` is called again and again; what could not be written stays in the journal for next time."""

    def __init__(self, sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory) -> None:
        self._sessions = sessions
        self._store = store
        self._lease = lease
        self._run = run
        self._offset = 0
        self._released = 0
        self._learning = LearningWatch(sessions, lease)
        self._has_new_steps = False
        self._audit = ResumeAudit()
        self._audit_ends_at: int | None = None
        """The last step that an earlier attempt reported, or this one's first."""
        self._waiting: list[CheckpointSaved] = []
        self._scores: dict[int, CheckpointScored] = {}
        """By step, for checkpoints that are not committed yet; what has been committed has its own already, and the few
        numbers stay. Entered while the job is held, as commits are made."""
        self._left_out: dict[int, int] = {}
        """Rollouts of a step that are not on record, until its metrics come."""
        self._uploads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-upload")
        self._upload: Future[float] | None = None
        self._uploads_s: deque[float] = deque(maxlen=REMEMBERED_UPLOADS)
        self.store_is_away = False
        """Whether the newest upload failed of the store."""
        self._refusal: StoreMisconfigured | None = None
        """Why the store takes nothing before somebody mends it."""
        self._has_told_refusal = False

    def ship(self) -> None:
        """Write what is new. A ledger or store that is away is noted, and tried again by the next call.

        Raises `LeaseLost`, `RunUnreadable`, and what else an upload failed of for good.
        """
        try:
            while self._ship_batch():
                pass
            if self._has_new_steps:
                self._learning.look()
                self._has_new_steps = False
            self._tell_refusal()
        except LEDGER_AWAY as error:
            log.warning("ledger_unreachable", error=str(error).splitlines()[0])
        self._start_upload()

    def is_drained(self) -> bool:
        """Whether all that the journal says is in the ledger, checkpoints too."""
        entries = next(self._run.read_journal(self._offset), None)
        return entries is None and not self._waiting and self._upload is None

    def close_audit(self) -> None:
        """Tell what the audit has found so far, if the run ended before it came to all that was recorded."""
        if not self._audit.compared:
            return
        with self._sessions.begin() as session:
            leases.hold(session, self._lease)
            if not progress.is_audited(session, self._lease):
                self._tell_audit(session)

    def close(self) -> None:
        """Give up what is still waiting; an upload under way ends by itself without effect."""
        self._waiting.clear()
        self._uploads.shutdown(wait=False, cancel_futures=True)

    def _ship_batch(self) -> bool:
        batch = list(islice(self._run.read_journal(self._offset), ENTRIES_PER_TRANSACTION))
        if not batch:
            return False
        with self._sessions.begin() as session:
            leases.hold(session, self._lease)
            shipped = progress.journal_offset(session, self._lease)
            for entry, end in batch:
                if end > shipped:
                    self._write(session, entry)
            progress.set_journal_offset(session, self._lease, batch[-1][1])
            failpoint("ship.rows_written")
        failpoint("ship.committed")
        self._offset = batch[-1][1]
        if self._offset - self._released >= RELEASE_BYTES:
            self._run.release_journal(self._offset)
            self._released = self._offset
        self._waiting += [entry for entry, _ in batch if isinstance(entry, CheckpointSaved)]
        return True

    def _write(self, session: Session, entry: JournalEntry) -> None:
        match entry:
            case StageStarted():
                self._write_stage(session, entry)
            case StepDone():
                self._audit_step(session, entry)
                progress.add_step(session, self._lease, entry.step, {**entry.metrics, **self._cut(entry.step)})
                self._has_new_steps = True
            case RolloutsDone():
                self._write_rollouts(session, entry)
            case EvaluationDone():
                self._write_evaluation(session, entry)
            case Notice():
                self._add_event(session, entry.code, entry.message, level=entry.level, data=entry.data)
            case CheckpointScored():
                self._scores[entry.step] = entry
                checkpoints.add_score(session, self._lease, entry)
            case CheckpointSaved():
                log.debug("checkpoint_waits_for_upload", step=entry.step)

    def _write_rollouts(self, session: Session, entry: RolloutsDone) -> None:
        spec = self._lease.spec
        size, most = spec.hyperparameters.num_generations, spec.record.rollouts_per_step
        kept = on_record(entry.rollouts, group_size=size, most=most)
        rollouts = [rollout.model_dump(mode="json") for rollout in kept]
        progress.add_rollouts(session, self._lease, entry.step, rollouts)
        self._left_out[entry.step] = len(entry.rollouts) - len(kept)
        progress.drop_rollouts(session, self._lease, up_to_step=entry.step - spec.record.steps)
        rows = rows_by_outcome(entry.rollouts, group_size=size, pass_threshold=spec.pass_threshold)
        progress.add_groups(session, self._lease, entry.step, rows)

    def _cut(self, step: int) -> dict[str, float]:
        """What its record lacks, where it lacks something."""
        left_out = self._left_out.pop(step, 0)
        return {"record/rollouts_left_out": left_out} if left_out else {}

    def _audit_step(self, session: Session, entry: StepDone) -> None:
        """Compare a step that an earlier attempt did too, and tell the result after the last of them."""
        if self._lease.attempt == 1:
            return
        if self._audit_ends_at is None:
            first = (self._run.read_plan().resume_step or 0) + 1
            self._audit_ends_at = max(first, progress.last_step_before(session, self._lease))
        recorded = progress.recorded_metrics(session, self._lease, entry.step)
        if recorded is not None:
            self._audit.compare(entry.step, recorded, entry.metrics)
        if entry.step == self._audit_ends_at:
            self._tell_audit(session)

    def _tell_audit(self, session: Session) -> None:
        report = self._audit.report()
        progress.set_audit(session, self._lease, report)
        level = "info" if report["exact"] else "warn"
        self._add_event(session, "resume_audit", self._audit.sentence(self._lease.spec), level=level, data=report)

    def _write_stage(self, session: Session, entry: StageStarted) -> None:
        progress.set_stage(session, self._lease, entry.stage)
        self._add_event(session, f"stage_{entry.stage}", f"Stage: {entry.stage}.", data={"at": entry.at})

    def _write_evaluation(self, session: Session, entry: EvaluationDone) -> None:
        evaluation = self._run.read_evaluation(entry.name)
        assert evaluation is not None, f"the journal speaks of evaluation {entry.name}, and there is none"
        data = evaluation.model_dump(mode="json")
        progress.add_evaluation(session, self._lease, entry.name, entry.step, data)
        passed = sum(task.greedy.passed is True for task in evaluation.tasks)
        message = f"Evaluation {entry.name}: {passed} of {len(evaluation.tasks)} held-out tasks passed (greedy)."
        self._add_event(session, "evaluated", message, data={"name": entry.name, "step": entry.step, "passed": passed})

    def _add_event(
        self, session: Session, code: str, message: str, *, level: str = "info", data: dict[str, object] | None = None
    ) -> None:
        events.add(session, self._lease.job_id, code=code, message=message, level=level, data=data)

    def _start_upload(self) -> None:
        """One upload at a time."""
        if self._upload is not None and self._upload.done():
            self._finish_upload(self._upload)
        self._skip_superseded()
        if self._upload is None and self._waiting:
            entry = self._waiting[0]
            folder = self._run.checkpoint(entry.step)
            scored = partial(self._scores.get, entry.step)
            commit = partial(checkpoints.commit, self._sessions, self._store, self._lease, folder, entry, scored)
            self._upload = self._uploads.submit(contextvars.copy_context().run, commit)

    def _skip_superseded(self) -> None:
        """Where the store is slower than the trainer, only the newest and the best matter beside the one under way:
        so however long it is away or takes, no more than three checkpoints are on the disk.
        """
        best = max((entry.step for entry in self._waiting if self._is_best(entry)), default=None)
        first = 0 if self._upload is None else 1
        for skipped in [entry for entry in self._waiting[first:-1] if entry.step != best]:
            self._waiting.remove(skipped)
            shutil.rmtree(self._run.checkpoint(skipped.step), ignore_errors=True)

    def _tell_refusal(self) -> None:
        """Once, until the store takes something again: to try again is right, and to be silent is not."""
        if self._refusal is None or self._has_told_refusal:
            return
        message = f"The store takes no checkpoint; training goes on, and each is tried again. {self._refusal.message}"
        with self._sessions.begin() as session:
            leases.hold(session, self._lease)
            self._add_event(session, self._refusal.code, message, level="warn", data={"fix": self._refusal.fix})
        self._has_told_refusal = True

    def _is_best(self, saved: CheckpointSaved) -> bool:
        score = self._scores.get(saved.step)
        return saved.is_best or (score is not None and score.is_best)

    def _finish_upload(self, upload: Future[float]) -> None:
        self._upload = None
        error = upload.exception()
        self.store_is_away = isinstance(error, StoreError)
        if error is None:
            done = self._waiting.pop(0)
            shutil.rmtree(self._run.checkpoint(done.step), ignore_errors=True)
            self._uploads_s.append(upload.result())
            self._run.write_upload_s(max(self._uploads_s))
            self._refusal, self._has_told_refusal = None, False
        elif isinstance(error, checkpoints.RETRYABLE):
            self._refusal = error if isinstance(error, StoreMisconfigured) else self._refusal
            log.warning("checkpoint_not_uploaded", error=str(error))
        else:
            raise error
