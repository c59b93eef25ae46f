"""The lines that `podium up` prints, in a real shell."""

import json
import os
import shlex
import subprocess

from cli.curl import Curl
from cli.example import Uploads, job_spec, shell_script
from core.settings import CHECKOUT

EXAMPLES = CHECKOUT / "examples"

# Stands in for the program: writes down how it was called and answers as the server would.
CURL = r"""
curl() {
    printf '%s\n' "$@" > "call-$(ls | wc -l)"
    printf '{"id": "id-%s"}' "$(ls | wc -l)"
}
"""


def test_the_printed_lines_upload_three_files_and_submit_their_ids(tmp_path):
    script = CURL + "\n".join(shell_script(Curl("http://127.0.0.1:8000", "pk_key")))
    subprocess.run(["/bin/sh", "-euc", script], cwd=tmp_path, check=True, capture_output=True)
    calls = [(tmp_path / f"call-{n}").read_text().splitlines() for n in range(4)]
    assert [call[1] for call in calls] == [
        "http://127.0.0.1:8000/v1/files",
        "http://127.0.0.1:8000/v1/files",
        "http://127.0.0.1:8000/v1/rewards",
        "http://127.0.0.1:8000/v1/fine_tuning/jobs",
    ]
    assert json.loads(calls[3][calls[3].index("-d") + 1]) == job_spec(Uploads("id-1", "id-2", "id-3"))


# Stands in for the program in a script of its own: every answer is that of a job that has succeeded.
CURL_PROGRAM = r"""#!/usr/bin/env python3
import json, os, sys, tarfile
arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(arguments) + "\n")
reply = {"id": f"id-{sum(1 for _ in open(os.environ['CALLS']))}", "status": "succeeded", "data": []}
if "--output" not in arguments:
    print(json.dumps(reply))
elif (out := arguments[arguments.index("--output") + 1]).endswith(".tar"):
    tarfile.open(out, "w").close()
else:
    open(out, "w").write(json.dumps({"verdict": {"sentence": "Improved."}}))
"""
QUIET = ["--silent", "--show-error", "--fail-with-body"]


def test_the_transcript_shows_each_call_as_it_was_made_but_for_the_key(tmp_path):
    program = tmp_path / "bin/curl"
    program.parent.mkdir()
    program.write_text(CURL_PROGRAM)
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    script = [EXAMPLES / "curl.sh", "http://127.0.0.1:8000", "pk_secret", tmp_path / "out", "3"]
    # To a file, where a second writer would write over what the first one wrote.
    with (tmp_path / "transcript").open("w") as transcript:
        subprocess.run(script, env=env, check=True, stdout=transcript, stderr=subprocess.STDOUT)

    printed = (tmp_path / "transcript").read_text()
    shown = [shlex.split(line)[2:] for line in printed.splitlines() if line.startswith("$ curl")]
    made = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [[*QUIET, *line] for line in shown] == [
        [word.replace("pk_secret", "$KEY") for word in call] for call in made
    ]
    assert len(shown) == 9
    assert "pk_secret" not in printed
    job = json.loads((tmp_path / "out/job.json").read_text())
    assert (job["training_file"], job["validation_file"]) == ("id-1", "id-2")
    assert json.dumps(job, indent=1) in printed
