"""The `podium` command.

Modules that load the ledger (SQLAlchemy, Alembic) or the local stack are imported by the commands that need them: they
take a second, and most commands only talk to a server.
"""

from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import checks, demo, jobs, reproduce, rescoring, rewards, signal_probes
from cli.configuration import DEFAULT_TENANT
from cli.data_folder import DEFAULT_DATA_FOLDER, DataFolder
from cli.interrupts import stop_when_told
from cli.terminal import complain, say
from core.errors import ServiceError

INTERRUPTED = 130
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


class Podium(TyperGroup):
    """Errors with a name end the command with their sentence and their fix; others are bugs and show a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ServiceError as error:
            complain(error)
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Podium,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Podium trains language models with GRPO: a model, prompts and a reward function in; an adapter out.",
)
keys = typer.Typer(no_args_is_help=True, help="API keys of the ledger at PODIUM_DATABASE_URL.")
app.add_typer(keys, name="keys")
app.add_typer(jobs.app, name="jobs")
app.command("signal-probe")(signal_probes.probe_command)
app.command("reproduce")(reproduce.reproduce_command)
jobs.app.command("rescore")(rescoring.rescore_command)
app.add_typer(rewards.app, name="reward")

Data = Annotated[Path, typer.Option("--data", help="Folder of the local stack.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Without it: 8000, or the next free one. 0: any free one."),
]


@app.command("up")
def up_command(data: Data = DEFAULT_DATA_FOLDER, port: Port = None) -> None:
    """Start the local stack and stay; Ctrl+C stops it."""
    from cli import up

    stop_when_told()
    up.run(DataFolder(data.absolute()), port=port)


@app.command("demo")
def demo_command(
    data: Data = DEFAULT_DATA_FOLDER,
    port: Port = None,
    out: Annotated[Path, typer.Option(help="Where the adapter and results.json go.")] = Path("podium-demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running afterwards.")] = False,
) -> None:
    """Train the bundled model on the example, over HTTP, and show what it learned."""
    stop_when_told()
    demo.run(DataFolder(data.absolute()), port=port, out=out.absolute(), keep=keep)


@app.command("test", context_settings=PASS_THROUGH)
def check_command(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Only pytest.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="Only tests/vllm, with the real vLLM in .venv-vllm.")] = False,
) -> None:
    """Lint, format, types, import contracts, then pytest with the arguments given."""
    raise typer.Exit(checks.run_vllm_tests(context.args) if vllm else checks.run_tests(context.args, fast=fast))


@app.command("bench", context_settings=PASS_THROUGH)
def bench_command(context: typer.Context, name: str) -> None:
    """Run bench/NAME with the arguments given, such as --json."""
    raise typer.Exit(checks.run_bench(name, context.args))


@app.command("migrate")
def migrate_command(
    create_key: Annotated[str | None, typer.Option(metavar="NAME", help="Also make a key of this name, once.")] = None,
) -> None:
    """Bring the schema at PODIUM_DATABASE_URL to the newest revision."""
    from cli import ledger

    ledger.run_migrate(key_name=create_key)


@keys.command("create")
def create_key_command(
    name: str, tenant: Annotated[str, typer.Option(help="Who owns what is made with it.")] = DEFAULT_TENANT
) -> None:
    """Make a key; its secret is shown once."""
    from cli import ledger

    ledger.create_key(name, tenant=tenant)


@keys.command("list")
def list_keys_command() -> None:
    """All keys, without their secrets."""
    from cli import ledger

    ledger.list_keys()


@keys.command("revoke")
def revoke_key_command(key_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Make a key useless from now on."""
    from cli import ledger

    ledger.revoke_key(key_id)


@app.command("doctor")
def doctor_command(data: Data = DEFAULT_DATA_FOLDER) -> None:
    """Look at everything a server needs, and say what to do about what is missing."""
    from cli import doctor

    raise typer.Exit(0 if doctor.run(DataFolder(data.absolute())) else 1)


@app.command("version")
def version_command() -> None:
    """The version of this podium."""
    say(distribution_version("podium"))


if __name__ == "__main__":
    app()
