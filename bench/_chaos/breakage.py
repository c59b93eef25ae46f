"""Which named places of the product (`core.failpoints`) break in which process, and how often.

A worker of each temper: most die at a place, one freezes there until after its lease, one dawdles there. The chances
(percent per visit) are such that a job meets about one of them in four.
"""

API_PLACES = {"submit.row_written": 2.0, "submit.committed": 2.0}
DISPATCHER_PLACES = {"dispatch.marked": 0.1, "dispatch.sent": 1.0, "janitor.decided": 5.0}
WORKER_PLACES = {
    "task.received": 0.7,
    "claim.committed": 1.0,
    "restore.file": 0.7,
    "ship.rows_written": 0.2,
    "ship.committed": 0.2,
    "checkpoint.begin": 0.6,
    "checkpoint.file_put": 0.3,
    "checkpoint.files_put": 0.6,
    "checkpoint.manifest_put": 0.6,
    "checkpoint.row_written": 0.6,
    "checkpoint.committed": 0.6,
    "retention.committed": 0.6,
    "publish.artifacts_put": 1.0,
    "publish.results_put": 1.0,
    "publish.rows_written": 1.0,
    "publish.committed": 1.0,
    "step.reported": 0.15,
    "save.draft_written": 0.4,
    "save.published": 0.4,
    "evaluation.batch_done": 0.4,
}
TEMPERS = ("kill", "kill", "stop", "kill", "sleep:9")
"""By the worker's number, again and again. Nine seconds are longer than the lease, and than an idle transaction."""


def worker_failpoints(number: int) -> str:
    return _spell(WORKER_PLACES, TEMPERS[number % len(TEMPERS)])


def api_failpoints() -> str:
    return _spell(API_PLACES, "kill")


def dispatcher_failpoints() -> str:
    return _spell(DISPATCHER_PLACES, "kill")


def _spell(places: dict[str, float], action: str) -> str:
    return ", ".join(f"{name}={percent}%{action}" for name, percent in places.items())
