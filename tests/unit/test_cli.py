"""The command line without a server: its words, its files, what it prints and what it refuses to unpack."""

import io
import json
import os
import shlex
import socket
import stat
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import checks
from cli.archive import unpack
from cli.client import DiagnosticsView, JobView, Progress
from cli.curl import Curl
from cli.data_folder import DEFAULT_DATA_FOLDER, Connection, DataFolder, write_secret
from cli.demo import describe, stay, what_now
from cli.diagnosis import after_pause, diagnosis_lines
from cli.errors import FolderInUse, NoConnection, PortUnavailable, UnsafeArchive
from cli.jobs import connect
from cli.main import app
from cli.stack import listen
from cli.verdict import verdict_lines
from core.results import JobResults
from tests.samples import results_document

COMMANDS = [
    "up",
    "demo",
    "test",
    "bench",
    "migrate",
    "keys",
    "jobs",
    "reward",
    "signal-probe",
    "reproduce",
    "doctor",
    "version",
]


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.make()
    return folder


def podium(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_help_names_every_command():
    shown = podium("--help").output
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    assert podium(command, "--help").exit_code == 0


def test_an_unknown_bench_names_the_benches_there_are(tmp_path, monkeypatch):
    (tmp_path / "overhead.py").touch()
    monkeypatch.setattr(checks, "BENCHES", tmp_path)
    result = podium("bench", "overheat")
    assert result.exit_code == 1
    assert "overhead" in result.stderr


def test_an_error_ends_the_command_with_its_sentence_and_its_fix(tmp_path, monkeypatch):
    monkeypatch.delenv("PODIUM_URL", raising=False)
    result = podium("jobs", "list", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "error: No server is known" in result.stderr
    assert "fix: Start one with `podium up`" in result.stderr


def test_a_port_out_of_range_is_a_usage_error():
    assert podium("up", "--port", "70000").exit_code == 2


def test_connection_file_is_private_and_round_trips(folder):
    connection = Connection(url="http://127.0.0.1:8000", api_key="pk_secret", pid=7)
    folder.write_connection(connection)
    assert stat.S_IMODE(folder.connection.stat().st_mode) == 0o600
    assert set(json.loads(folder.connection.read_text())) == {"url", "api_key", "pid"}
    assert folder.read_connection() == connection


@pytest.mark.parametrize("content", ["", "{", '{"url": "http://127.0.0.1:8000"}', "[]"])
def test_a_broken_connection_file_means_no_connection(folder, content):
    folder.connection.write_text(content)
    assert folder.read_connection() is None


def test_a_secret_replaces_an_open_file_by_a_private_one(tmp_path):
    path = tmp_path / "api_key"
    path.write_text("old")
    path.chmod(0o644)
    write_secret(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_options_win_over_the_local_stack(folder):
    folder.write_connection(Connection(url="http://127.0.0.1:8000", api_key="pk_local", pid=7))
    with connect("http://elsewhere:9000/", None, folder.root) as client:
        assert client.url == "http://elsewhere:9000"
    with connect(None, None, folder.root) as client:
        assert client.url == "http://127.0.0.1:8000"


def test_no_server_known_is_an_error_with_a_fix(folder):
    with pytest.raises(NoConnection), connect(None, "pk_key", folder.root):
        pass


def test_a_held_folder_is_refused_and_names_the_holder(folder):
    with folder.held():
        assert folder.is_held()
        with pytest.raises(FolderInUse, match=r"process \d+"), folder.held():
            pass
    assert not folder.is_held()


def test_a_taken_port_is_an_error_only_when_it_was_asked_for():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=str(port)):
            listen(port, say=print)


def test_without_a_wish_the_next_free_port_is_taken_and_said():
    said: list[str] = []
    with listen(None, say=said.append) as first, listen(None, say=said.append) as second:
        chosen = second.getsockname()[1]
        assert chosen > first.getsockname()[1]
        assert any(str(chosen) in line for line in said)


def test_verdict_lines_begin_with_the_fixed_words():
    lines = verdict_lines(JobResults.model_validate(results_document()))
    assert [line.split()[0] for line in lines[:5]] == ["baseline", "final", "fixed", "broken", "p"]
    assert "sampled 105/200 (52.5 %)" in lines[0]
    assert "sampled 153/200 (76.5 %)" in lines[1]
    assert lines[2].split()[1] == "55"
    assert lines[3].split()[1] == "7"
    assert lines[4].split()[1] == "1.2e-10"


def test_verdict_without_a_p_value_says_so():
    document = results_document()
    document["verdict"] |= {"p_value": None, "outcome": "not_comparable"}
    assert verdict_lines(JobResults.model_validate(document))[4].startswith("p         not comparable")


def test_the_live_line_says_only_what_is_known():
    assert describe(JobView(id="ftjob-1", status="queued")) == "queued"
    progress = Progress(step=42, max_steps=120, reward=0.7125, silent_share=0.375, estimated_remaining_s=95.4)
    running = JobView(id="ftjob-1", status="running", stage="training", progress=progress)
    assert describe(running) == "training  step 42/120  reward 0.713  silent 38 %  1 min 35 s left"


@pytest.mark.parametrize(
    "command", ["list", "get", "cancel", "pause", "resume", "diagnose", "learning", "events", "metrics"]
)
def test_every_command_for_jobs_explains_itself(command):
    shown = podium("jobs", command, "--help")
    assert shown.exit_code == 0
    assert "--api-key" in shown.output


def test_a_pause_says_what_is_safe():
    asked = JobView(id="ftjob-1", status="running", progress=Progress(durable_step=40))
    assert after_pause(asked) == (
        "ftjob-1 is running, and pauses when its trainer has ended its step and saved; step 40 is safe."
    )
    paused = JobView(id="ftjob-1", status="paused")
    assert after_pause(paused) == "ftjob-1 is paused; no step is durable yet."


def test_a_diagnosis_begins_with_what_the_job_waits_for_and_ends_with_findings():
    report = {
        "job_id": "ftjob-1",
        "status": "running",
        "now": {"summary": "Phase generation of step 3 for 12 s.", "waiting_for": "trainer", "since": 1, "for_s": 12.0},
        "run": {"attempt": 2, "stage": "training", "lease": {"stands": True, "last_good_at": 0}},
        "newest_step": {"step": 2, "at": 1, "age_s": 13.4},
        "durable_step": None,
        "steps_at_risk": 2,
        "findings": [
            {
                "code": "trainer_hung",
                "severity": "warning",
                "message": "The watchdog ended a trainer that hung.",
                "fix": "Look at the stacks.",
                "evidence": {"attempts": [1]},
                "first_seen": 0,
                "last_seen": 0,
                "count": 2,
            }
        ],
        "learning": [
            {
                "code": "all_wrong",
                "severity": "error",
                "message": "Nothing was ever right.",
                "fix": "Read some rollouts.",
                "try_next": "Fine-tune first.",
                "since_step": 12,
                "links": {"metrics": "/v1/metrics?from_step=12", "rollouts": "/v1/rollouts?step=12"},
                "evidence": {"silent_all_wrong": 0.9},
            }
        ],
    }
    lines = list(diagnosis_lines(DiagnosticsView.model_validate(report)))
    assert lines[0] == "ftjob-1  running"
    assert lines[1] == "now       Phase generation of step 3 for 12 s."
    assert lines[2].startswith("run       attempt 2, stage training; its lease stands, last known good at ")
    assert lines[3:6] == ["newest    step 2, 13 s ago", "durable   no checkpoint yet; 2 steps at risk", ""]
    assert lines[6].startswith("warning  trainer_hung, 2 times, last seen ")
    assert lines[7:] == [
        "  The watchdog ended a trainer that hung.",
        '  evidence: {"attempts": [1]}',
        "  fix: Look at the stacks.",
        "",
        "error  all_wrong, since step 12",
        "  Nothing was ever right.",
        '  evidence: {"silent_all_wrong": 0.9}',
        "  look at: GET /v1/rollouts?step=12 and /v1/metrics?from_step=12",
        "  fix: Read some rollouts.",
        "  next: Fine-tune first.",
    ]


def test_a_pasted_submit_line_carries_the_spec_unchanged():
    spec = {"model": "podium/tiny", "suffix": 'it\'s "quoted" $HOME `id`'}
    words = shlex.split(Curl("http://127.0.0.1:8000", "pk_key").submit(spec))
    assert json.loads(words[words.index("-d") + 1]) == spec


def make_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            member.size = 5 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"bytes") if member.isfile() else None)
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_unpack_writes_plain_files(tmp_path):
    archive = make_tar(tmp_path / "a.tar", tarfile.TarInfo("adapter_config.json"), tarfile.TarInfo("sub/README.md"))
    written = unpack(archive, tmp_path / "out")
    assert written == [tmp_path / "out/adapter_config.json", tmp_path / "out/sub/README.md"]
    assert written[1].read_bytes() == b"bytes"


@pytest.mark.parametrize(
    "evil",
    [
        tarfile.TarInfo("../escaped"),
        tarfile.TarInfo("sub/../../escaped"),
        tarfile.TarInfo("/tmp/escaped"),
        link("link", "/etc/passwd", tarfile.SYMTYPE),
        link("link", "../escaped", tarfile.LNKTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
    ],
    ids=["parent", "hidden parent", "absolute", "symlink", "hard link", "fifo"],
)
def test_unpack_refuses_what_would_leave_the_folder_before_writing_anything(tmp_path, evil):
    archive = make_tar(tmp_path / "a.tar", tarfile.TarInfo("good"), evil)
    with pytest.raises(UnsafeArchive):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out/good").exists()
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    ("folder", "is_ours", "keep", "words"),
    [
        (DEFAULT_DATA_FOLDER, True, False, "`./podium up` starts"),
        (Path("/srv/my data"), True, False, "`./podium up --data '/srv/my data'` starts"),
        (DEFAULT_DATA_FOLDER, True, True, "goes on; Ctrl+C stops it"),
        (DEFAULT_DATA_FOLDER, False, False, "still running"),
        (DEFAULT_DATA_FOLDER, False, True, "still running"),
    ],
)
def test_the_demo_ends_with_what_becomes_of_the_server(folder: Path, is_ours: bool, keep: bool, words: str) -> None:
    pid = os.getpid() if is_ours else os.getppid()
    connection = Connection(url="http://127.0.0.1:8000", api_key="pk_key", pid=pid)
    assert words in what_now(DataFolder(folder), connection, keep=keep)


def test_ctrl_c_is_a_good_end_of_a_server_that_was_kept() -> None:
    tended: list[int] = []

    def tend() -> None:
        tended.append(1)
        raise KeyboardInterrupt

    stay(tend)
    assert tended == [1]
