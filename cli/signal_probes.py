"""`podium signal-probe JOB.json`: a probe of the job that the file describes, waited for and shown."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client import ENDED, Client, FromServer, JobError
from cli.data_folder import DEFAULT_DATA_FOLDER
from cli.errors import JobFileUnreadable, SignalProbeFailed
from cli.interrupts import pause, stop_when_told
from cli.jobs import ApiKey, Data, Url, connect
from cli.terminal import changing_line, say

POLL_S = 1.0
MOST_BAR = 40
"""Characters of the longest bar of the histogram."""
MOST_ROWS = 12
"""Lines of the training file that an advice shows; `--json` has all."""


class BinView(FromServer):
    low: float
    high: float
    prompts: int


class SizeView(FromServer):
    num_generations: int
    silent_share: float
    silent_share_ci95: tuple[float, float]
    estimator: str
    completions_per_signal: float | None = None


class AdviceView(FromServer):
    code: str
    severity: str
    message: str
    fix: str
    rows: tuple[int, ...] = ()


class ReportView(FromServer):
    sentence: str
    prompts: int
    training_rows: int
    samples: int
    num_generations: int
    pass_rates: list[BinView]
    sizes: list[SizeView]
    truncated_share: float
    mean_prompt_tokens: float
    mean_completion_tokens: float
    advice: list[AdviceView]


class ProbeView(FromServer):
    id: str
    status: str
    stage: str | None = None
    prompts: int
    samples: int
    error: JobError | None = None
    gpu_seconds: float = 0.0
    report: ReportView | None = None


def probe_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.json", help="The body of the job: what you would submit.")],
    prompts: Annotated[int | None, typer.Option(min=1, help="Training rows to try; unset: 32.")] = None,
    samples: Annotated[int | None, typer.Option(min=2, help="Completions of each; unset: num_generations.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer instead.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data: Data = DEFAULT_DATA_FOLDER,
) -> None:
    """Say how much of a job would teach something, before it is paid for: sampled and graded, nothing trained."""
    asked = {"prompts": prompts, "samples": samples}
    body = _read(job) | {name: value for name, value in asked.items() if value is not None}
    stop_when_told()
    with connect(url, api_key, data) as client:
        document = _run(client, body, quiet=as_json)
    if as_json:
        say(json.dumps(document, indent=2))
        return
    probe = ProbeView.model_validate(document)
    assert probe.report is not None, "it has succeeded"
    for line in report_lines(probe.report):
        say(line)
    say(f"\n{probe.gpu_seconds:.0f} s of a worker were spent on {probe.id}.")


def report_lines(report: ReportView) -> Iterator[str]:
    yield report.sentence
    lengths = f"{report.mean_prompt_tokens:.0f} + {report.mean_completion_tokens:.0f} tokens on average"
    tried = f"{report.prompts} of {report.training_rows} training rows, {report.samples} completions each"
    yield f"{tried}: {lengths}, {report.truncated_share:.0%} cut."
    yield ""
    yield from _histogram(report.pass_rates)
    yield ""
    yield from _sizes(report)
    for advice in report.advice:
        yield ""
        yield from _advice_lines(advice)


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobFileUnreadable(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(body, dict):
        raise JobFileUnreadable(f"{path} does not hold a JSON object.")
    return body


def _run(client: Client, body: dict[str, Any], *, quiet: bool) -> Any:
    """The probe's document once it has succeeded. Ctrl+C cancels it."""
    probe = ProbeView.model_validate(client.create_signal_probe(body))
    try:
        if not quiet:
            say(f"{probe.id}: {probe.prompts} prompts x {probe.samples} completions.")
        with nullcontext(_show_nothing) if quiet else changing_line() as show:
            document = _wait(client, probe.id, show)
    except KeyboardInterrupt:
        client.cancel_signal_probe(probe.id)
        raise
    probe = ProbeView.model_validate(document)
    if probe.status != "succeeded":
        fallback = JobError(code=probe.status, message=f"The probe was {probe.status}.")
        error = probe.error or fallback
        raise SignalProbeFailed(f"{error.code}: {error.message}", fix=error.fix)
    return document


def _wait(client: Client, probe_id: str, show: Callable[[str], None]) -> Any:
    while True:
        document = client.signal_probe(probe_id)
        probe = ProbeView.model_validate(document)
        if probe.status in ENDED:
            return document
        show(f"{probe.status}  {probe.stage or ''}".rstrip())
        pause(POLL_S)


def _show_nothing(_: str) -> None:
    """Standard output is the document's alone."""


def _histogram(bins: Sequence[BinView]) -> Iterator[str]:
    most = max((one.prompts for one in bins), default=0)
    yield "pass rate      prompts"
    for one in bins:
        bar = "#" * -(-one.prompts * MOST_BAR // max(most, MOST_BAR))
        yield f"{_range(one):<13}  {one.prompts:>4}  {bar}".rstrip()


def _range(one: BinView) -> str:
    if one.low == one.high:
        return "never" if one.low == 0 else "always"
    return f"{one.low:.0%} to {one.high:.0%}"


def _sizes(report: ReportView) -> Iterator[str]:
    yield "group size     silent  95 % interval  completions per group with signal"
    for size in report.sizes:
        low, high = (f"{end:.0%}" for end in size.silent_share_ci95)
        price = "-" if size.completions_per_signal is None else f"{size.completions_per_signal:.0f}"
        notes = [
            *(["the job's"] if size.num_generations == report.num_generations else []),
            *(["extrapolated"] if size.estimator == "extension" else []),
        ]
        share = f"{size.silent_share:>6.0%}  {f'{low} to {high}':<13}"
        yield f"{size.num_generations:<13}  {share}  {price:<8}{', '.join(notes)}".rstrip()


def _advice_lines(advice: AdviceView) -> Iterator[str]:
    yield f"{advice.severity}  {advice.code}"
    yield f"  {advice.message}"
    yield f"  fix: {advice.fix}"
    if advice.rows:
        more = f" and {len(advice.rows) - MOST_ROWS} more" if len(advice.rows) > MOST_ROWS else ""
        yield f"  rows: {', '.join(map(str, advice.rows[:MOST_ROWS]))}{more}"
