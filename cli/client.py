"""A small client of the HTTP API, for the demo and the `podium jobs` commands. It knows nothing of the ledger."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from cli.errors import RequestFailed, ServerUnreachable
from core.taught import Bill, Prompts, Window

TIMEOUT_S = 60.0
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class FromServer(BaseModel):
    """What we read of an answer; a newer server may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Progress(FromServer):
    step: int | None = None
    max_steps: int | None = None
    durable_step: int | None = None
    reward: float | None = None
    silent_share: float | None = None
    estimated_remaining_s: float | None = None


class JobError(FromServer):
    code: str
    message: str
    fix: str | None = None


class JobView(FromServer):
    id: str
    status: str
    model: str = ""
    created_at: int = 0
    stage: str | None = None
    status_reason: str | None = None
    progress: Progress | None = None
    error: JobError | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class NowView(FromServer):
    summary: str


class FindingView(FromServer):
    code: str
    severity: str
    message: str
    fix: str
    evidence: dict[str, Any] = {}
    first_seen: int
    last_seen: int
    count: int


class StepLinksView(FromServer):
    metrics: str
    rollouts: str


class LearningFindingView(FromServer):
    code: str
    severity: str
    message: str
    fix: str
    try_next: str
    since_step: int | None = None
    links: StepLinksView | None = None
    evidence: dict[str, Any] = {}


class StepAgeView(FromServer):
    step: int
    age_s: float


class LeaseView(FromServer):
    stands: bool
    last_good_at: int


class RunView(FromServer):
    attempt: int
    stage: str | None = None
    lease: LeaseView


class DiagnosticsView(FromServer):
    job_id: str
    status: str
    status_reason: str | None = None
    now: NowView
    run: RunView | None = None
    newest_step: StepAgeView | None = None
    durable_step: StepAgeView | None = None
    steps_at_risk: int = 0
    findings: list[FindingView] = []
    learning: list[LearningFindingView] = []


class LearningView(FromServer):
    prompts: Prompts
    windows: list[Window]
    bill: Bill | None = None
    usd_without_gradient: float | None = None


class ScoreView(FromServer):
    n: int
    passed: int
    pass_rate_ci95: tuple[float, float] | None = None
    mean_reward: float | None = None
    mean_reward_ci95: tuple[float, float] | None = None


class EvaluationView(FromServer):
    name: str
    step: int
    greedy: ScoreView
    sampled: ScoreView


class EvaluationsView(FromServer):
    decoding: str | None = None
    best: str | None = None
    data: list[EvaluationView]


class SideView(FromServer):
    job_id: str
    evaluation: str
    step: int


class VerdictView(FromServer):
    decoding: str
    sentence: str
    tasks: int
    fixed: int
    broken: int
    p_value: float | None = None


class ComparisonView(FromServer):
    before: SideView
    after: SideView
    verdict: VerdictView


class EventView(FromServer):
    seq: int
    created_at: int
    level: str
    message: str
    code: str = ""
    data: dict[str, Any] = {}


class ErrorBody(FromServer):
    code: str | None = None
    message: str
    fix: str | None = None


class Client:
    """Raises RequestFailed with the server's own words, and ServerUnreachable when there is none."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def upload_file(self, path: Path) -> str:
        return self._upload("/v1/files", path, {"purpose": "fine-tune"})

    def upload_reward(self, path: Path, *, name: str) -> str:
        return self._upload("/v1/rewards", path, {"name": name})

    def submit(self, spec: dict[str, Any]) -> JobView:
        return JobView.model_validate(self._send("POST", "/v1/fine_tuning/jobs", json=spec).json())

    def jobs(self, *, limit: int) -> list[JobView]:
        page = self._send("GET", "/v1/fine_tuning/jobs", params={"limit": limit}).json()
        return [JobView.model_validate(job) for job in page["data"]]

    def job(self, job_id: str) -> JobView:
        return JobView.model_validate(self.job_document(job_id))

    def job_document(self, job_id: str) -> Any:
        """All that the server says, as JSON."""
        return self._send("GET", _job(job_id)).json()

    def cancel(self, job_id: str) -> JobView:
        return JobView.model_validate(self._send("POST", _job(job_id, "/cancel")).json())

    def pause(self, job_id: str) -> JobView:
        return JobView.model_validate(self._send("POST", _job(job_id, "/pause")).json())

    def resume(self, job_id: str) -> JobView:
        return JobView.model_validate(self._send("POST", _job(job_id, "/resume")).json())

    def create_signal_probe(self, body: dict[str, Any]) -> Any:
        return self._send("POST", "/v1/signal_probes", json=body).json()

    def signal_probe(self, probe_id: str) -> Any:
        return self._send("GET", f"/v1/signal_probes/{probe_id}").json()

    def cancel_signal_probe(self, probe_id: str) -> None:
        self._send("POST", f"/v1/signal_probes/{probe_id}/cancel")

    def rescore(self, job_id: str, body: dict[str, Any]) -> Any:
        return self._send("POST", _job(job_id, "/rescore"), json=body).json()

    def rescored(self, job_id: str, task_id: str) -> Any:
        return self._send("GET", _job(job_id, f"/rescore/{task_id}")).json()

    def diagnose(self, job_id: str) -> DiagnosticsView:
        return DiagnosticsView.model_validate(self._send("GET", _job(job_id, "/diagnostics")).json())

    def learning(self, job_id: str) -> LearningView:
        return LearningView.model_validate(self._send("GET", _job(job_id, "/learning")).json())

    def evaluations(self, job_id: str) -> EvaluationsView:
        return EvaluationsView.model_validate(self._send("GET", _job(job_id, "/evaluations")).json())

    def compare(self, job_id: str, query: Mapping[str, str]) -> ComparisonView:
        return ComparisonView.model_validate(self._send("GET", _job(job_id, "/comparison"), params=query).json())

    def events(self, job_id: str, *, after_seq: int = 0) -> list[EventView]:
        """All events behind `after_seq`, oldest first."""
        found: list[EventView] = []
        while True:
            page = self._send("GET", _job(job_id, "/events"), params={"after_seq": after_seq, "limit": 100}).json()
            found += [EventView.model_validate(event) for event in page["data"]]
            if not page["has_more"]:
                return found
            after_seq = found[-1].seq

    def metrics_csv(self, job_id: str) -> str:
        return self._send("GET", _job(job_id, "/metrics"), headers={"Accept": "text/csv"}).text

    def results(self, job_id: str) -> bytes:
        return self.get(_job(job_id, "/results"))

    def get(self, path: str) -> bytes:
        """The body of any other GET."""
        return self._send("GET", path).content

    def adapter_tar(self, job_id: str) -> Iterator[bytes]:
        with self._http.stream("GET", _job(job_id, "/adapter"), follow_redirects=True) as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            yield from response.iter_bytes()

    def _upload(self, path: str, file: Path, form: dict[str, str]) -> str:
        with file.open("rb") as content:
            answer = self._send("POST", path, data=form, files={"file": (file.name, content)})
        return str(answer.json()["id"])

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, follow_redirects=True, **request)
        except httpx.TransportError as error:
            raise ServerUnreachable(f"No answer from {self.url}: {error}") from error
        if response.is_error:
            raise _refusal(response)
        return response


def _job(job_id: str, rest: str = "") -> str:
    return f"/v1/fine_tuning/jobs/{job_id}{rest}"


def _refusal(response: httpx.Response) -> RequestFailed:
    try:
        body = ErrorBody.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError, ValidationError):
        return RequestFailed(f"The server answered {response.status_code}: {response.text[:200]}")
    return RequestFailed(f"{body.code}: {body.message}", fix=body.fix)
