"""Triggers that write down every accepted write of an attempt beside the attempt that the job had at that moment.

They see what the rows no longer show in the end: what was overwritten, and by whom. Under fencing both numbers are
always the same, because a writer holds the job's row until it commits.
"""

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench._chaos.trainer import NOTE

_TABLE = """
CREATE TABLE chaos_writes (
    id bigserial PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    relation text NOT NULL,
    job_id text NOT NULL,
    attempt int NOT NULL,
    current_attempt int NOT NULL,
    step int
)
"""
_FUNCTION = """
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_writes (relation, job_id, attempt, current_attempt, step)
    SELECT TG_TABLE_NAME, NEW.job_id,
           CASE TG_TABLE_NAME WHEN 'job_events' THEN (to_jsonb(NEW) -> 'data' ->> 'attempt')::int ELSE NEW.attempt END,
           jobs.attempt, (to_jsonb(NEW) ->> 'step')::int
    FROM jobs WHERE jobs.id = NEW.job_id;
    RETURN NULL;
END $$
"""
_WRITES = {
    "step_metrics": "INSERT OR UPDATE",
    "evaluations": "INSERT OR UPDATE",
    "artifacts": "INSERT OR UPDATE",
    "job_attempts": "INSERT OR UPDATE",
    "rollouts": "INSERT",
    "checkpoints": "INSERT",  # a later attempt may give up or mark an earlier one's
}


def install(session: Session) -> None:
    session.execute(text(_TABLE))
    session.execute(text(_FUNCTION))
    for table, writes in _WRITES.items():
        session.execute(
            text(f"CREATE TRIGGER chaos_note AFTER {writes} ON {table} FOR EACH ROW EXECUTE FUNCTION chaos_note()")
        )
    notes = f"WHEN (NEW.code = '{NOTE}')"
    session.execute(
        text(f"CREATE TRIGGER chaos_note AFTER INSERT ON job_events FOR EACH ROW {notes} EXECUTE FUNCTION chaos_note()")
    )
