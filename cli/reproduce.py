"""`podium reproduce BUNDLE.tar`: the job that the bundle tells of, run again, and compared figure by figure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cli.client import JobView
from cli.data_folder import DEFAULT_DATA_FOLDER, Connection, DataFolder
from cli.demo import Tend, any_stack
from cli.errors import NoConnection
from cli.interrupts import stop_when_told
from cli.jobs import ApiKey, Url
from cli.reproduction.differences import compare
from cli.reproduction.inputs import Inputs, find_inputs
from cli.reproduction.record import Record
from cli.reproduction.report import Comparison, figure_rows, group_rows, reason_rows, sentences
from cli.reproduction.rerun import RerunClient, run_again
from cli.reproduction.surroundings import differences
from cli.terminal import say, say_table

Archive = Annotated[Path, typer.Argument(metavar="BUNDLE.tar", help="From GET /v1/fine_tuning/jobs/{id}/bundle.")]
Tolerance = Annotated[
    float,
    typer.Option(min=0, max=1, help="Accept numbers that differ by at most this share of the larger; 0: to the bit."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--file", exists=True, dir_okay=False, help="A data set that the bundle leaves out; by its digest."),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option("--reward", metavar="NAME=FILE", help="Another source, or the credentials (JSON) of an http reward."),
]
Data = Annotated[Path, typer.Option("--data", help="Folder of the local stack, where no server is named.")]


def reproduce_command(
    bundle: Archive,
    tolerance: Tolerance = 0.0,
    file: Files = None,
    reward: Rewards = None,
    url: Url = None,
    api_key: ApiKey = None,
    data: Data = DEFAULT_DATA_FOLDER,
) -> None:
    """Run a job again from its bundle, and say which figures differ. Exit code 0: none does.

    Without --url, the local stack that runs on the folder is used, or one is started for the time of the job.
    """
    stop_when_told()
    with TemporaryDirectory(prefix="podium-reproduce-") as scratch:
        recorded = Record.read(bundle, Path(scratch, "recorded"))
        inputs = find_inputs(recorded, file or [], reward or [])
        with _server(url, api_key, DataFolder(data.absolute())) as (tend, connection):
            rerun = _rerun(connection, tend, recorded, inputs, Path(scratch))
        comparison = Comparison(
            figures=compare(recorded, rerun, tolerance=tolerance),
            surroundings=differences(recorded.bundle, rerun.bundle),
            replaced=inputs.replaced,
            spec=rerun.bundle.spec,
            device=None if rerun.bundle.environment is None else rerun.bundle.environment.device,
        )
    _show(comparison)
    raise typer.Exit(0 if comparison.agrees else 1)


@contextmanager
def _server(url: str | None, api_key: str | None, folder: DataFolder) -> Iterator[tuple[Tend, Connection]]:
    if url is None:
        with any_stack(folder, port=None) as server:
            yield server
    elif api_key is None:
        raise NoConnection(f"There is no key for {url}.", fix="Set PODIUM_API_KEY, or give --api-key.")
    else:
        yield lambda: None, Connection(url=url, api_key=api_key, pid=0)


def _rerun(connection: Connection, tend: Tend, recorded: Record, inputs: Inputs, scratch: Path) -> Record:
    with RerunClient(connection.url, connection.api_key) as client:
        job = run_again(client, recorded.bundle, inputs, tend)
        _say_ending(job)
        archive = scratch / "rerun.tar"
        archive.write_bytes(client.bundle(job.id))
    return Record.read(archive, scratch / "rerun")


def _say_ending(job: JobView) -> None:
    error = "" if job.error is None else f": {job.error.code}: {job.error.message}"
    reason = f" ({job.status_reason})" if job.status_reason else ""
    say(f"{job.id} has {job.status if job.has_ended else 'been paused'}{reason}{error}.")


def _show(comparison: Comparison) -> None:
    for rows in (group_rows(comparison), figure_rows(comparison), reason_rows(comparison)):
        if table := list(rows):
            say()
            say_table(*table)
    say()
    for sentence in sentences(comparison):
        say(sentence)
