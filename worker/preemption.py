"""Who says, beside SIGTERM, that this machine is going away: a file, or the metadata server of its cloud.

A source is asked every few seconds and answers with a `Notice`, or with None. To add one: a class with `notice()`,
and a line in `make_source`. What the clouds answer is from their own documentation:

    AWS     "Spot Instance interruption notices" (two minutes), "Use IMDSv2"
    GCP     "Preemptible VM instances" (30 seconds), "Query metadata server for maintenance event notices"
    Azure   "Azure Metadata Service: Scheduled Events for Linux VMs" (30 seconds for Preempt, 5 to 15 minutes for
            Terminate)
"""

import contextvars
import email.utils
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Annotated, Protocol, Self

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from core.settings import Settings

log = structlog.get_logger()

METADATA_URL = "http://169.254.169.254"
"""The link-local address (RFC 3927) at which all three clouds answer, without a name to be resolved."""
TIMEOUT_S = 1.0
LONGEST_NOTICE_S = 120.0
"""More time than AWS's two minutes is not relied upon: this machine's clock may be slow."""
LAST_POLL_S = 1.0
"""How long the end waits for a question under way: one that hangs is left behind."""
_TOKEN_TTL_S = 21_600
"""What IMDSv2 grants at most."""
_MAX_REASON_CHARS = 500
_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine is going away."""

    source: str
    """`file`, `aws`, `gcp` or `azure`."""
    reason: str
    """In the source's own words; empty where it says no more."""
    goes_at: datetime | None = None
    """When the machine goes, or may go; None where the source does not say: any moment."""

    @property
    def time_left_s(self) -> float:
        """As this machine's clock says; where nobody can say, none."""
        if self.goes_at is None:
            return 0.0
        return min(max(0.0, (self.goes_at - datetime.now(UTC)).total_seconds()), LONGEST_NOTICE_S)


class Source(Protocol):
    def notice(self) -> Notice | None:
        """What is announced now. Raises nothing: who cannot be asked announces nothing."""


def make_source(settings: Settings) -> Source | None:
    """The source that the operator chose; None: only signals tell."""
    server = MetadataServer(settings.preemption_url or METADATA_URL)
    match settings.preemption_source:
        case "none":
            return None
        case "file":
            return Tolerant(PreemptionFile(settings.preemption_file).notice)
        case "aws":
            return Tolerant(AwsMetadata(server).notice)
        case "gcp":
            return Tolerant(GcpMetadata(server).notice)
        case "azure":
            return Tolerant(AzureMetadata(server).notice)


def is_noticed(source: Source | None) -> bool:
    """Whether this machine is about to go: then it should begin nothing. Takes a few seconds at most."""
    return source is not None and source.notice() is not None


class PreemptionWatch:
    """A context: asks the source inside the block, from a thread of its own, and calls `on_notice` at most once."""

    def __init__(self, source: Source | None, settings: Settings, *, on_notice: Callable[[Notice], None]) -> None:
        self._source = source
        self._poll_s = settings.preemption_poll_s
        self._on_notice = on_notice
        self._ended = threading.Event()
        watch = contextvars.copy_context().run  # so that its log lines name the job
        self._thread = threading.Thread(target=watch, args=(self._watch,), name="preemption-watch", daemon=True)

    def __enter__(self) -> Self:
        if self._source is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._source is not None:
            self._thread.join(LAST_POLL_S)

    def _watch(self) -> None:
        assert self._source is not None
        while (notice := self._source.notice()) is None:
            if self._ended.wait(self._poll_s):
                return
        if not self._ended.is_set():
            log.warning("machine_is_going", source=notice.source, reason=notice.reason, goes_at=notice.goes_at)
            self._on_notice(notice)


class Tolerant:
    """A source whose errors are logged once for each time that it is away, and announce nothing."""

    def __init__(self, ask: Callable[[], Notice | None]) -> None:
        self._ask = ask
        self._is_away = False

    def notice(self) -> Notice | None:
        try:
            notice = self._ask()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._is_away:
                log.warning("preemption_source_unreadable", error=_one_line(str(error)) or type(error).__name__)
            self._is_away = True
            return None
        self._is_away = False
        return notice


class PreemptionFile:
    """A file that somebody makes: a shutdown hook, a sidecar, a person. What is in it is the reason."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def notice(self) -> Notice | None:
        if not self._path.exists():
            return None
        return Notice("file", self._read())

    def _read(self) -> str:
        """Its existence is the message: a file that cannot be read says it as well."""
        if not self._path.is_file():  # a pipe would be waited for
            return ""
        try:
            with self._path.open("rb") as file:
                return _one_line(file.read(_MAX_ANSWER_BYTES).decode(errors="replace"))
        except OSError:
            return ""


class MetadataServer:
    """HTTP to a link-local address: no proxy may see it, and no redirect leads away from it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opener = urllib.request.OpenerDirector()  # build_opener() would add proxies, redirects, files and FTP
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    def ask(self, path: str, headers: Mapping[str, str], *, method: str = "GET") -> str:
        """The answer's text. Raises OSError (of it HTTPError, for a status other than 2xx), HTTPException, ValueError.

        The timeout is for each wait on the socket.
        """
        request = urllib.request.Request(  # noqa: S310 - the opener speaks nothing but HTTP
            self._url + path, headers=dict(headers), method=method
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                text: str = response.read(_MAX_ANSWER_BYTES).decode()
                return text.strip()
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise


class AwsMetadata:
    """A spot instance is told two minutes ahead when it will be stopped, hibernated or terminated.

    A rebalance recommendation is no notice: most instances that get one live on.
    """

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._token: str | None = None

    def notice(self) -> Notice | None:
        try:
            text = self._ask("/latest/meta-data/spot/instance-action")
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:  # what is said as long as nothing is planned
                return None
            raise
        planned = _InstanceAction.model_validate_json(text)
        return Notice("aws", _one_line(planned.action), planned.time)

    def _ask(self, path: str) -> str:
        """Under a session's token; a new one when there is none, or the server knows it no more."""
        if self._token is not None:
            try:
                return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.UNAUTHORIZED:
                    raise
        self._token = self._fetch_token()
        return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token})

    def _fetch_token(self) -> str:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
        try:
            token = self._server.ask("/latest/api/token", ttl, method="PUT")
        except urllib.error.HTTPError as error:
            raise OSError(f"no IMDSv2 token: {error}") from error  # its 404 does not mean that nothing is planned
        if not (token and token.isascii() and token.isprintable()):
            raise ValueError("no IMDSv2 token: the answer is none")
        return token


class GcpMetadata:
    """A spot VM is told 30 seconds ahead; one with a GPU is told an hour ahead that its host goes into maintenance.

    That early word comes only to those who ask `maintenance-event` all along. Neither says when.
    """

    def __init__(self, server: MetadataServer) -> None:
        self._server = server

    def notice(self) -> Notice | None:
        preempted = self._ask("preempted")
        if preempted not in ("TRUE", "FALSE"):
            raise ValueError(f"preempted is neither TRUE nor FALSE: {preempted[:80]!r}")
        if preempted == "TRUE":
            return Notice("gcp", "preempted")
        event = self._ask("maintenance-event")  # also NONE, and MIGRATE_ON_HOST_MAINTENANCE, which loses nothing
        return Notice("gcp", event) if event == "TERMINATE_ON_HOST_MAINTENANCE" else None

    def _ask(self, name: str) -> str:
        return self._server.ask(f"/computeMetadata/v1/instance/{name}", {"Metadata-Flavor": "Google"})


class AzureMetadata:
    """Scheduled events that end a machine: `Preempt` and `Terminate`; others freeze, reboot or move it.

    A scale set's machines hear of each other's events, so we look for our own name among the resources. The first
    question ever asked switches the service on, which takes up to two minutes.
    """

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._name: str | None = None

    def notice(self) -> Notice | None:
        text = self._ask("/metadata/scheduledevents?api-version=2020-07-01")
        endings = [event for event in _ScheduledEvents.model_validate_json(text).events if event.ends_a_machine]
        ours = [event for event in endings if self._is_ours(event)]
        if not ours:
            return None
        first = min(ours, key=lambda event: event.not_before or datetime.min.replace(tzinfo=UTC))
        return Notice("azure", _one_line(first.event_type), first.not_before)

    def _is_ours(self, event: "_ScheduledEvent") -> bool:
        """It names us, or nobody. While our name cannot be learned, it may be ours: a checkpoint costs little."""
        if not event.resources:
            return True
        try:
            self._name = self._name or self._ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text")
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.warning("machine_name_unknown", error=_one_line(str(error)))
            return True
        return self._name.casefold() in [name.casefold() for name in event.resources]

    def _ask(self, path: str) -> str:
        return self._server.ask(path, {"Metadata": "true"})


def _moment(text: object) -> datetime | None:
    """AWS writes ISO 8601, Azure RFC 5322. None for what is neither: an odd time does not undo the announcement."""
    for parse in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with suppress(ValueError, OverflowError):
            moment = parse(str(text))
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


_Moment = Annotated[datetime | None, BeforeValidator(_moment)]


class _InstanceAction(BaseModel):
    """`{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`"""

    action: str
    """Or `stop`, or `hibernate`: those lose the GPU as well."""
    time: _Moment = None


class _ScheduledEvent(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    event_type: str = Field(alias="EventType")
    resources: tuple[str, ...] = Field((), alias="Resources")
    not_before: _Moment = Field(None, alias="NotBefore")
    """`Mon, 19 Sep 2016 18:29:47 GMT`; empty once the event has started."""

    @property
    def ends_a_machine(self) -> bool:
        return self.event_type in ("Preempt", "Terminate")


class _ScheduledEvents(BaseModel):
    events: tuple[_ScheduledEvent, ...] = Field(alias="Events")


def _one_line(text: str) -> str:
    """Fit for a log line and an event."""
    return " ".join(text.split())[:_MAX_REASON_CHARS]
