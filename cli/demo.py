"""The main job, end to end and over HTTP only, as a stranger would do it."""

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.archive import unpack
from cli.client import Client, EventView, JobView, Progress
from cli.curl import Curl
from cli.data_folder import DEFAULT_DATA_FOLDER, Connection, DataFolder
from cli.errors import JobNotSucceeded, ServerUnreachable
from cli.example import HELDOUT, REWARD, REWARD_NAME, TRAIN, Uploads, job_spec, shown
from cli.interrupts import pause
from cli.terminal import changing_line, say
from cli.verdict import verdict_lines
from core.results import JobResults

POLL_S = 0.5
SILENCE_LIMIT_S = 60.0
Tend = Callable[[], None]


def run(folder: DataFolder, *, port: int | None, out: Path, keep: bool) -> None:
    """Raises JobNotSucceeded when the job ended otherwise."""
    with any_stack(folder, port=port) as (tend, connection):
        with Client(connection.url, connection.api_key) as client:
            job = _submit_and_follow(client, Curl(connection.url, connection.api_key), tend)
            if job.status != "succeeded":
                raise _not_succeeded(job)
            results = _download(client, job.id, out)
        _show_outcome(results, out, connection)
        say(what_now(folder, connection, keep=keep))
        if keep and connection.pid == os.getpid():
            stay(tend)


@contextmanager
def any_stack(folder: DataFolder, *, port: int | None) -> Iterator[tuple[Tend, Connection]]:
    """The stack that already runs on the folder, or one for the length of the block."""
    running = folder.read_connection() if folder.is_held() else None
    if running is not None:
        say(f"Using the podium that runs on {folder.root} (process {running.pid}).")
        yield lambda: None, running
        return
    from cli.stack import running_stack

    with running_stack(folder, port=port, say=say) as (stack, connection):
        yield stack.tend, connection


def describe(job: JobView) -> str:
    """The live line: stage, step, reward, silent share, time left; only what is known."""
    progress = job.progress or Progress()
    parts = [job.stage or job.status]
    if progress.step is not None and progress.max_steps is not None:
        parts.append(f"step {progress.step}/{progress.max_steps}")
    if progress.reward is not None:
        parts.append(f"reward {progress.reward:.3f}")
    if progress.silent_share is not None:
        parts.append(f"silent {100 * progress.silent_share:.0f} %")
    if progress.estimated_remaining_s is not None:
        parts.append(f"{_duration(progress.estimated_remaining_s)} left")
    return "  ".join(parts)


def what_now(folder: DataFolder, connection: Connection, *, keep: bool) -> str:
    """The last line: what becomes of the server."""
    if connection.pid != os.getpid():
        return f"The server was there before, and is still running (process {connection.pid})."
    if keep:
        return "The server goes on; Ctrl+C stops it, and the data stays."
    is_default = folder.root == DEFAULT_DATA_FOLDER.absolute()
    command = "./podium up" if is_default else f"./podium up --data {shlex.quote(shown(folder.root))}"
    return f"`{command}` starts the same server again, with this job and this key."


def stay(tend: Tend) -> None:
    """Until Ctrl+C, which is a good end here: the job is done."""
    try:
        while True:
            tend()
            pause(POLL_S)
    except KeyboardInterrupt:
        return


def _submit_and_follow(client: Client, curl: Curl, tend: Tend) -> JobView:
    uploads = _upload(client, curl)
    spec = job_spec(uploads)
    _show_command(curl.submit(spec))
    job = client.submit(spec)
    _show_command(curl.poll(job.id))
    try:
        return _follow(client, job.id, tend)
    except KeyboardInterrupt:
        say(f"Nothing was cancelled: {job.id} is kept, and goes on while a podium runs on this folder.")
        raise


def _upload(client: Client, curl: Curl) -> Uploads:
    return Uploads(
        training_file=_upload_file(client, curl, TRAIN),
        validation_file=_upload_file(client, curl, HELDOUT),
        reward=_upload_reward(client, curl, REWARD),
    )


def _upload_file(client: Client, curl: Curl, path: Path) -> str:
    _show_command(curl.upload_file(shown(path)))
    return client.upload_file(path)


def _upload_reward(client: Client, curl: Curl, path: Path) -> str:
    _show_command(curl.upload_reward(shown(path), name=REWARD_NAME))
    return client.upload_reward(path, name=REWARD_NAME)


def _follow(client: Client, job_id: str, tend: Tend) -> JobView:
    """Poll until the job has ended, telling its events as they come; an API that starts again is waited for."""
    told = 0
    answered_at = time.monotonic()
    with changing_line() as show:
        while True:
            tend()
            try:
                job = client.job(job_id)
                told = _tell(client.events(job_id, after_seq=told), told)
            except ServerUnreachable:
                if time.monotonic() - answered_at > SILENCE_LIMIT_S:
                    raise
            else:
                answered_at = time.monotonic()
                if job.has_ended:
                    return job
                show(describe(job))
            pause(POLL_S)


def _tell(events: list[EventView], told: int) -> int:
    """Print the events; the `seq` of the last one told."""
    for event in events:
        clock = time.strftime("%H:%M:%S", time.localtime(event.created_at))
        say(f"{clock}  {event.message}", style=None if event.level == "info" else "yellow")
        told = event.seq
    return told


def _download(client: Client, job_id: str, out: Path) -> JobResults:
    out.mkdir(parents=True, exist_ok=True)
    document = client.results(job_id)
    (out / "results.json").write_bytes(document)
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        for piece in client.adapter_tar(job_id):
            archive.write(piece)
        archive.flush()
        unpack(Path(archive.name), out)
    return JobResults.model_validate_json(document)


def _show_outcome(results: JobResults, out: Path, connection: Connection) -> None:
    say()
    for line in Curl(connection.url, connection.api_key).download(results.job.id):
        _show_command(line)
    say()
    for line in verdict_lines(results):
        say(line)
    say()
    say(f"Adapter    {shown(out / 'adapter')}")
    say(f"Results    {shown(out / 'results.json')}")
    say(f"URL        {connection.url}")
    say(f"API key    {connection.api_key}")
    say("The lines that begin with $ are all that happened: change the files, and the job is yours.")


def _not_succeeded(job: JobView) -> JobNotSucceeded:
    if job.error is None:
        return JobNotSucceeded(f"The job {job.id} is {job.status} ({job.status_reason or 'no reason given'}).")
    return JobNotSucceeded(
        f"The job {job.id} is {job.status}: {job.error.code}: {job.error.message}", fix=job.error.fix
    )


def _show_command(line: str) -> None:
    say(f"$ {line}", style="cyan")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
