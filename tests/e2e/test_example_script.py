"""The lines that `podium up` prints, in a real shell."""

import json
import subprocess

from cli.curl import Curl
from cli.example import Uploads, job_spec, shell_script

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
