"""The grading worker's one task: answer a row of `grading_tasks`. The hint carries its id only."""

import os
from functools import cache

from core.db.session import make_sessions
from core.ids import GradingTaskId
from core.queue import GRADING_TASK
from core.settings import get_settings
from core.storage.connect import open_store
from worker.grading.rules import GradingRules
from worker.grading_tasks.answer import HARD_LIMIT_S, SOFT_LIMIT_S, answer
from worker.grading_tasks.context import Workplace
from worker.grading_tasks.main import app
from worker.main import is_stopping


@app.task(name=GRADING_TASK, soft_time_limit=SOFT_LIMIT_S, time_limit=HARD_LIMIT_S)  # type: ignore[untyped-decorator]
def grade(task_id: str) -> None:
    """A second delivery of the same hint claims nothing. A hint that is dropped here is sent again."""
    if not is_stopping():
        answer(GradingTaskId(task_id), _workplace())


@cache
def _workplace() -> Workplace:
    """Of this pool child: connections must not be shared with the parent that forked it."""
    settings = get_settings()
    rules = GradingRules(
        run_without_sandbox=settings.run_reward_code_without_sandbox,
        memory_bytes=settings.reward_memory_bytes,
        allow_private_reward_urls=settings.allow_private_reward_urls,
    )
    os.environ.update(rules.as_environment())  # where graders look
    return Workplace(make_sessions(settings.database_url, pool_size=2), open_store(settings))
