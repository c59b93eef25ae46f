"""Which module answers which kind of task. A new kind is one module and one line here."""

from collections.abc import Callable, Mapping
from typing import Any

from core.grading_tasks import GradingTaskKind
from worker.grading_tasks import probe_reward, rescore, run_grader
from worker.grading_tasks.context import Context

Handler = Callable[[dict[str, Any], Context], dict[str, Any]]
"""From a row's `request` to its `answer`, both JSON. Raises ServiceError when there is no answer: the row keeps it."""

HANDLERS: Mapping[GradingTaskKind, Handler] = {
    GradingTaskKind.RUN_GRADER: run_grader.handle,
    GradingTaskKind.PROBE_REWARD: probe_reward.handle,
    GradingTaskKind.PROBE_SOURCE: probe_reward.handle_source,
    GradingTaskKind.RESCORE: rescore.handle,
}
