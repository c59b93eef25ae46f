"""`podium jobs rescore`: what another version of a reward would have made of a job's completions."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cli.client import Client, FromServer, JobError
from cli.data_folder import DEFAULT_DATA_FOLDER
from cli.errors import RescoreFailed
from cli.interrupts import pause, stop_when_told
from cli.jobs import ApiKey, Data, JobIdArgument, Url, connect
from cli.terminal import say

POLL_S = 1.0
WAITING = frozenset({"queued", "running"})
_MOST_SHOWN = 60
"""Characters of a completion."""


class StepView(FromServer):
    step: int


class RanksView(FromServer):
    groups: int
    tau_b: float | None
    pairs: int
    flipped: int


class FlatView(FromServer):
    share_old: float | None
    share_new: float | None


class VerdictsView(FromServer):
    compared: int
    failed_to_passed: int
    passed_to_failed: int


class ExampleView(FromServer):
    step: int
    row: int
    completion: str
    old: float
    new: float


class EvaluationView(FromServer):
    name: str
    answers: int
    mean_old: float | None
    mean_new: float | None
    verdicts: VerdictsView
    errors: int


class ReportView(FromServer):
    rollouts: int
    left_out: int
    errors: int
    no_answer: int
    other_errors: int = 0
    notes: tuple[str, ...] = ()
    last_error: str | None
    mean_old: float | None
    mean_new: float | None
    steps: list[StepView]
    ranks: RanksView
    flat: FlatView
    verdicts: VerdictsView
    most_changed: list[ExampleView]
    evaluations: list[EvaluationView] | None


class RescoreView(FromServer):
    id: str
    status: str
    report: ReportView | None = None
    error: JobError | None = None


def rescore_command(
    job: JobIdArgument,
    reward: Annotated[str, typer.Option(help="rew-...: an uploaded reward.")],
    version: Annotated[int | None, typer.Option(min=1, help="Unset: its newest version.")] = None,
    term: Annotated[
        str | None, typer.Option(help="The job's reward that it stands in for; unset: its only one.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(help="How it is called (`podium reward forms`); unset: as the job asked for, or as found."),
    ] = None,
    from_step: Annotated[int | None, typer.Option(min=0)] = None,
    to_step: Annotated[int | None, typer.Option(min=0)] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rollouts; unset: 1000.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer instead.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data: Data = DEFAULT_DATA_FOLDER,
) -> None:
    """Grade a job's completions again with another version of a reward, and compare. Nothing of the job changes."""
    options = {
        "version": version,
        "term": term,
        "form": form,
        "from_step": from_step,
        "to_step": to_step,
        "limit": limit,
    }
    body = {"reward": reward, **{name: value for name, value in options.items() if value is not None}}
    stop_when_told()
    with connect(url, api_key, data) as client:
        document = _run(client, job, body)
    if as_json:
        say(json.dumps(document, indent=2))
        return
    found = RescoreView.model_validate(document)
    assert found.report is not None, "it has ended well"
    for line in report_lines(found.report):
        say(line)


def report_lines(report: ReportView) -> Iterator[str]:
    for note in report.notes:
        yield f"note      {note}"
    counts = f"{report.rollouts} rollouts of {len(report.steps)} steps"
    yield f"graded    {counts}; {report.errors} errors, {report.no_answer} without reward, {report.left_out} left out"
    if report.last_error is not None:
        yield f"          last error: {report.last_error}"
    yield f"mean      {_change(report.mean_old, report.mean_new)}"
    ranks = report.ranks
    if ranks.tau_b is not None:
        pairs = f"{ranks.flipped} of {ranks.pairs} pairs change their order"
        yield f"order     Kendall's tau-b {ranks.tau_b:.3f} over {ranks.groups} groups; {pairs}"
    yield f"flat      {_change(report.flat.share_old, report.flat.share_new)} of the groups teach nothing"
    yield f"verdicts  {_verdicts(report.verdicts)}"
    for evaluation in report.evaluations or ():
        yield _evaluation(evaluation)
    for example in report.most_changed:
        text = " ".join(example.completion.split())[-_MOST_SHOWN:]
        yield f"  step {example.step}, row {example.row}: {_change(example.old, example.new)}  {text}"


def _run(client: Client, job: str, body: dict[str, Any]) -> Any:
    """The answer once the task has ended; raises RescoreFailed when it has not ended well."""
    document = client.rescore(job, body)
    while (task := RescoreView.model_validate(document)).status in WAITING:
        pause(POLL_S)
        document = client.rescored(job, task.id)
    if task.error is not None:
        raise RescoreFailed(f"{task.error.code}: {task.error.message}", fix=task.error.fix)
    return document


def _evaluation(change: EvaluationView) -> str:
    means, moved = _change(change.mean_old, change.mean_new), _verdicts(change.verdicts)
    return f"{change.name:<9} {means} over {change.answers} answers; {moved}; {change.errors} errors"


def _change(old: float | None, new: float | None) -> str:
    return " -> ".join("none" if value is None else f"{value:.3f}" for value in (old, new))


def _verdicts(verdicts: VerdictsView) -> str:
    moved = f"{verdicts.failed_to_passed} failed now pass, {verdicts.passed_to_failed} passed now fail"
    return f"{moved}, of {verdicts.compared}"
