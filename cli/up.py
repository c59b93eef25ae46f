"""`podium up`: the local stack, until it is told to stop."""

from cli.curl import Curl
from cli.data_folder import Connection, DataFolder
from cli.example import shell_script, shown
from cli.interrupts import pause
from cli.stack import running_stack
from cli.terminal import say

TEND_EVERY_S = 0.2


def run(folder: DataFolder, *, port: int | None) -> None:
    """Returns after Ctrl+C or SIGTERM, when everything has ended."""
    try:
        with running_stack(folder, port=port, say=say) as (stack, connection):
            _welcome(folder, connection)
            while True:
                stack.tend()
                pause(TEND_EVERY_S)
    except KeyboardInterrupt:
        return


def _welcome(folder: DataFolder, connection: Connection) -> None:
    say(f"  URL      {connection.url}")
    say(f"  API key  {connection.api_key}")
    say(f"  API      {connection.url}/openapi.json, docs/api.md")
    say(f"  Logs     {shown(folder.logs)}")
    say()
    say("Submit the example; paste into another shell:")
    for line in shell_script(Curl(connection.url, connection.api_key)):
        say(f"  {line}", style="cyan")
    say()
    say("Or see it all happen: ./podium demo. Ctrl+C stops the server; the data stays.")
