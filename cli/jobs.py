"""`podium jobs ...`: a look at a running server from the shell."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.client import Client
from cli.data_folder import DEFAULT_DATA_FOLDER, DataFolder
from cli.diagnosis import after_pause, diagnosis_lines
from cli.errors import NoConnection
from cli.evaluations import comparison_lines, evaluation_rows
from cli.learning import learning_lines, window_rows
from cli.terminal import say, say_table
from core.results import Decoding

app = typer.Typer(no_args_is_help=True, help="Read, pause, resume, cancel and diagnose jobs of a running server.")
Url = Annotated[str | None, typer.Option("--url", envvar="PODIUM_URL", help="Where the server is.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="PODIUM_API_KEY", help="Your key, pk_...")]
Data = Annotated[Path, typer.Option("--data", help="Else: the local stack that runs on this folder.")]
JobIdArgument = Annotated[str, typer.Argument(metavar="JOB", help="ftjob-...")]


@app.command("list")
def list_jobs(
    url: Url = None,
    api_key: ApiKey = None,
    data: Data = DEFAULT_DATA_FOLDER,
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
) -> None:
    """The newest jobs."""
    with connect(url, api_key, data) as client:
        found = client.jobs(limit=limit)
    rows = [(job.id, job.status, job.stage or "", job.model, _clock(job.created_at)) for job in found]
    say_table(("id", "status", "stage", "model", "created"), *rows)


@app.command("get")
def get_job(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """One job, as JSON."""
    with connect(url, api_key, data) as client:
        say(json.dumps(client.job_document(job), indent=2))


@app.command("cancel")
def cancel_job(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """Ask a job to stop; the status follows when it has."""
    with connect(url, api_key, data) as client:
        say(f"{job} is {client.cancel(job).status}; cancelling is asked for.")


@app.command("pause")
def pause_job(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """Ask a job to save and stop until it is resumed; the status follows when it has."""
    with connect(url, api_key, data) as client:
        say(after_pause(client.pause(job)))


@app.command("resume")
def resume_job(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """Queue a paused job again, or take back a pause that has not taken effect yet."""
    with connect(url, api_key, data) as client:
        say(f"{job} is {client.resume(job).status}.")


@app.command("diagnose")
def diagnose_job(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """What a job waits for right now, which step is safe, and what is worth knowing about it."""
    with connect(url, api_key, data) as client:
        for line in diagnosis_lines(client.diagnose(job)):
            say(line)


@app.command("learning")
def learning(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """Which prompts could teach, over time, and what was paid for those that could not."""
    with connect(url, api_key, data) as client:
        report = client.learning(job)
    say_table(("steps", "mixed", "all right", "all wrong", "prompts", "of them mixed"), *window_rows(report))
    for line in learning_lines(report):
        say(line)


@app.command("evaluations")
def list_evaluations(
    job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER
) -> None:
    """How the held-out tasks came out at each evaluation so far, with 95 % intervals; the best one is marked."""
    with connect(url, api_key, data) as client:
        found = client.evaluations(job)
    say_table(*evaluation_rows(found))


@app.command("compare")
def compare_evaluations(
    job: JobIdArgument,
    url: Url = None,
    api_key: ApiKey = None,
    data: Data = DEFAULT_DATA_FOLDER,
    before: Annotated[str, typer.Option(help="An evaluation: baseline, step-50, ..., final.")] = "baseline",
    after: Annotated[str, typer.Option(help="Another one.")] = "final",
    against: Annotated[str | None, typer.Option(metavar="JOB", help="Another job, that --before is then of.")] = None,
    decoding: Annotated[Decoding | None, typer.Option(help="Unset: the one that the job is judged by.")] = None,
) -> None:
    """The verdict on any two evaluations of the same held-out tasks, of one job or of two."""
    query = {"before": before, "after": after, "against": against, "decoding": decoding}
    with connect(url, api_key, data) as client:
        found = client.compare(job, {name: value for name, value in query.items() if value is not None})
    for line in comparison_lines(found):
        say(line)


@app.command("events")
def list_events(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """The events of a job, oldest first."""
    with connect(url, api_key, data) as client:
        for event in client.events(job):
            say(f"{_clock(event.created_at)}  {event.level:<5}  {event.message}")


@app.command("metrics")
def list_metrics(job: JobIdArgument, url: Url = None, api_key: ApiKey = None, data: Data = DEFAULT_DATA_FOLDER) -> None:
    """The step metrics of a job, as CSV."""
    with connect(url, api_key, data) as client:
        say(client.metrics_csv(job).rstrip("\n"))


@contextmanager
def connect(url: str | None, api_key: str | None, data: Path) -> Iterator[Client]:
    """A client of the named server, else of the local stack of `data`. Raises NoConnection."""
    local = DataFolder(data.absolute()).read_connection()
    if local is not None:
        url, api_key = url or local.url, api_key or local.api_key
    if not url or not api_key:
        raise NoConnection("No server is known: neither a URL and key, nor a running local stack.")
    with Client(url, api_key) as client:
        yield client


def _clock(created_at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created_at))
