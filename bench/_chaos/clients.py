"""The people of a chaos run: they submit over HTTP, try again as careful clients do, and change their minds.

Every submission carries an idempotency key, so that an API that dies in the middle of one still makes exactly one job.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench._chaos.plan import Submit
from core.settings import BUNDLED_MODEL

METADATA_KEY = "chaos"
ANSWER_TIMEOUT_S = 4.0
RETRY_S = 0.3
GIVE_UP_S = 120.0
IN_FLIGHT = "request_in_flight"
ROWS = b"".join(b'{"prompt": "%d+2", "answer": "4"}\n' % number for number in range(100))
REWARD = b"def reward(completion, answer):\n    return float(completion == answer)\n"


@dataclass
class Heard:
    """What the clients asked for, and what they were told. Written by their threads, read at the end."""

    ids: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The ids that each submission was answered with: exactly one, however often it was sent."""
    cancel_asked: set[str] = field(default_factory=set)
    never_taken: set[int] = field(default_factory=set)
    """Submissions that were refused, or given up: nobody waits for these jobs."""
    refused: list[str] = field(default_factory=list)
    """Answers that no careful client should get."""
    requests: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int | None
    """None: there was no answer."""
    said: str
    body: dict[str, Any] | None = None
    """Of a success."""

    @property
    def is_to_be_tried_again(self) -> bool:
        return (
            self.status is None
            or self.status >= 500
            or self.status == 429
            or (self.status == 409 and IN_FLIGHT in self.said)
        )


class Clients:
    def __init__(self, url: str, api_key: str, *, threads: int = 6) -> None:
        self.heard = Heard()
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=ANSWER_TIMEOUT_S,
            limits=httpx.Limits(max_keepalive_connections=0),  # a new connection for each request meets every fault
        )
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="client")
        self._pending: set[Future[None]] = set()
        self._uploads: dict[str, str] = {}

    def prepare(self) -> None:
        """Upload what every job needs."""
        file = {"file": ("rows.jsonl", ROWS)}
        data = self._send("POST", "/v1/files", key="rows", data={"purpose": "fine-tune"}, files=file)
        reward = self._send(
            "POST", "/v1/rewards", key="reward", data={"name": "exact"}, files={"file": ("exact.py", REWARD)}
        )
        if data is None or reward is None:
            raise SystemExit(f"the API does not take uploads: {self.heard.refused}")
        self._uploads = {"data": data["id"], "reward": reward["id"]}

    @property
    def are_busy(self) -> bool:
        """Somebody has not had an answer yet."""
        for future in [future for future in self._pending if future.done()]:
            self._pending.remove(future)
            future.result()  # a fault of the harness itself ends the run
        return bool(self._pending)

    def submit(self, job: Submit) -> None:
        self._begin(self._submit, job)

    def cancel(self, job_id: str) -> None:
        self.heard.cancel_asked.add(job_id)
        self._begin(self._wish, job_id, "cancel")

    def pause(self, job_id: str) -> None:
        self._begin(self._wish, job_id, "pause")

    def resume(self, job_id: str) -> None:
        self._begin(self._wish, job_id, "resume")

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._http.close()

    def _begin(self, ask: Callable[..., None], *arguments: Any) -> None:
        self._pending.add(self._pool.submit(ask, *arguments))

    def _submit(self, job: Submit) -> None:
        for _ in range(2 if job.twice else 1):
            answer = self._send("POST", "/v1/fine_tuning/jobs", key=f"job-{job.number}", json=self._spec(job))
            with self._lock:
                if answer is None:
                    self.heard.never_taken.add(job.number)
                    return
                self.heard.ids[job.number].add(answer["id"])

    def _wish(self, job_id: str, wish: str) -> None:
        """A conflict is an answer: the job was faster."""
        self._send("POST", f"/v1/fine_tuning/jobs/{job_id}/{wish}", key=None)

    def _spec(self, job: Submit) -> dict[str, Any]:
        return {
            "model": BUNDLED_MODEL,
            "training_file": self._uploads["data"],
            "seed": job.number,
            "metadata": {METADATA_KEY: str(job.number)},
            "method": {
                "type": "grpo",
                "grpo": {
                    "rewards": [{"reward": self._uploads["reward"]}],
                    "hyperparameters": {"num_generations": 2, "prompts_per_step": 2, "max_steps": job.steps},
                    "checkpoints": {"every_steps": job.save_every, "keep": job.keep},
                },
            },
        }

    def _send(self, method: str, path: str, *, key: str | None, **request: Any) -> dict[str, Any] | None:
        """The answer of a success, None for a conflict; whatever else comes is tried again, for two minutes."""
        give_up_at, tries = time.monotonic() + GIVE_UP_S, 1
        if key is not None:
            request["headers"] = {"Idempotency-Key": f"chaos-{key}"}
        while (answer := self._try(method, path, **request)).is_to_be_tried_again:
            if time.monotonic() > give_up_at:
                self._refuse(f"{method} {path}: gave up after {tries} tries: {answer.said}")
                break
            time.sleep(RETRY_S)
            tries += 1
        if answer.status in (400, 401, 403, 404, 413, 415, 422):
            self._refuse(f"{method} {path}: {answer.status} {answer.said}")
        self._count(tries)
        return answer.body

    def _try(self, method: str, path: str, **request: Any) -> "Answer":
        try:
            response = self._http.request(method, path, **request)
        except httpx.TransportError as error:
            return Answer(None, f"{type(error).__name__}: {error}")
        body = dict(response.json()) if response.is_success else None
        return Answer(response.status_code, response.text[:400], body)

    def _count(self, tries: int) -> None:
        with self._lock:
            self.heard.requests += 1
            self.heard.retries += tries - 1

    def _refuse(self, what: str) -> None:
        with self._lock:
            self.heard.refused.append(what)
