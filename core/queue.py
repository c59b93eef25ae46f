"""The queues' words: a hint is an id under a task name. Losing every message costs time, never a job or an answer."""

import base64
import json
from uuid import uuid4

TRAIN_QUEUE = "podium.train"
TRAIN_TASK = "podium.train_job"
GRADING_QUEUE = "podium.grading"
GRADING_TASK = "podium.grade"
GRADING_CONCURRENCY = 4
"""Tasks at once: most of each is spent on waiting for a sandbox, and one that hangs must not hold up the others."""


def train_queue(gpus: int) -> str:
    """The queue of jobs that need so many GPUs. A worker hears of no job that it has too few for."""
    return TRAIN_QUEUE if gpus == 1 else f"{TRAIN_QUEUE}.{gpus}"


def hint_message(queue: str, task: str, argument: str) -> bytes:
    """A hint as Celery's workers read it from the Redis list `queue`, for a process that goes without Celery.

    Inside is Celery's message protocol, version 2; around it kombu's envelope (`kombu.transport.virtual.base`).
    """
    message_id = str(uuid4())
    body = json.dumps(([argument], {}, {}))
    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": task, "id": message_id, "root_id": message_id, "ignore_result": True},
            "properties": {
                "correlation_id": message_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "delivery_tag": str(uuid4()),
                "priority": 0,
                "body_encoding": "base64",
            },
        }
    ).encode()
