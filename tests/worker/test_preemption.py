"""What says that a machine is going away: the file, and three clouds' metadata servers in all their moods."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from core.settings import Settings
from tests.polling import wait_until
from tests.servers.metadata import Metadata, running_metadata_server
from worker.preemption import LONGEST_NOTICE_S, Notice, PreemptionWatch, Source, is_noticed, make_source

ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

QUIET = {PREEMPTED: "FALSE", MAINTENANCE: "NONE", EVENTS: json.dumps({"DocumentIncarnation": 1, "Events": []})}
"""Nothing is planned; AWS says so by having nothing at all."""
CLOUDS = ["aws", "gcp", "azure"]


@pytest.fixture
def server() -> Iterator[Metadata]:
    with running_metadata_server(QUIET) as server:
        yield server


def make_settings(**changes) -> Settings:
    return Settings(_env_file=None, preemption_poll_s=0.02, **changes)


def source_of(cloud: str, server: Metadata) -> Source:
    source = make_source(make_settings(preemption_source=cloud, preemption_url=server.url))
    assert source is not None
    return source


def scheduled(event_type: str, *, resources: list[str] | None = None, not_before: str = "") -> dict:
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": event_type,
        "ResourceType": "VirtualMachine",
        "Resources": ["gpu_7"] if resources is None else resources,
        "EventStatus": "Scheduled",
        "NotBefore": not_before,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


def announce(cloud: str, server: Metadata) -> None:
    """Let the machine's end be planned, the way its cloud says it."""
    match cloud:
        case "aws":
            server.answers[ACTION] = '{"action": "terminate", "time": "2026-09-18T08:22:00Z"}'
        case "gcp":
            server.answers[PREEMPTED] = "TRUE"
        case _:
            server.answers |= {EVENTS: json.dumps({"Events": [scheduled("Preempt")]}), NAME: "gpu_7"}


def events(server: Metadata, *planned: dict) -> None:
    server.answers |= {EVENTS: json.dumps({"DocumentIncarnation": 2, "Events": planned}), NAME: "gpu_7"}


@pytest.mark.parametrize(("goes_in_s", "left_s"), [(None, 0.0), (-60.0, 0.0), (60.0, 60.0), (3600.0, LONGEST_NOTICE_S)])
def test_the_time_left_is_what_the_notice_says_within_what_a_clock_is_trusted_for(goes_in_s, left_s):
    goes_at = None if goes_in_s is None else datetime.now(UTC) + timedelta(seconds=goes_in_s)
    assert Notice("aws", "stop", goes_at).time_left_s == pytest.approx(left_s, abs=1.0)


def test_without_a_source_nothing_is_ever_noticed():
    assert make_source(make_settings()) is None
    assert not is_noticed(None)


# The file


def file_source(path: Path) -> Source:
    source = make_source(make_settings(preemption_source="file", preemption_file=path))
    assert source is not None
    return source


def test_the_file_announces_the_end_from_when_it_exists(tmp_path):
    path = tmp_path / "preempted"
    source = file_source(path)
    assert source.notice() is None
    path.write_text("drained by\n  the operator\n")
    assert source.notice() == Notice("file", "drained by the operator")
    path.unlink()
    assert source.notice() is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"word " * 100_000])
def test_any_file_announces_and_its_reason_is_bounded(tmp_path, content):
    path = tmp_path / "preempted"
    path.write_bytes(content)
    notice = file_source(path).notice()
    assert notice is not None
    assert len(notice.reason) <= 500


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_file_that_cannot_be_read_announces_without_a_reason(tmp_path, make):
    path = tmp_path / "preempted"
    make(path)
    assert file_source(path).notice() == Notice("file", "")


def test_a_folder_that_is_not_there_announces_nothing(tmp_path):
    assert not is_noticed(file_source(tmp_path / "nowhere" / "preempted"))


# What the clouds say


@pytest.mark.parametrize("cloud", CLOUDS)
def test_where_nothing_is_planned_nothing_is_announced(server, cloud):
    with capture_logs() as logs:
        assert not is_noticed(source_of(cloud, server))
    assert logs == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_cloud_announces_the_end_in_its_own_way(server, cloud):
    source = source_of(cloud, server)
    assert not is_noticed(source)
    announce(cloud, server)
    assert is_noticed(source)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_proxy_never_sees_the_question(server, cloud, monkeypatch):
    with running_metadata_server() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        announce(cloud, server)
        assert is_noticed(source_of(cloud, server))
    assert proxy.requests == []


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_aws_says_what_will_be_done_and_when(server, action):
    server.answers[ACTION] = json.dumps({"action": action, "time": "2026-09-18T08:22:00Z"})
    goes_at = datetime(2026, 9, 18, 8, 22, tzinfo=UTC)
    assert source_of("aws", server).notice() == Notice("aws", action, goes_at)


def test_aws_a_rebalance_recommendation_is_no_notice(server):
    server.answers[REBALANCE] = '{"noticeTime": "2026-09-18T08:22:00Z"}'
    assert source_of("aws", server).notice() is None


def test_aws_a_token_serves_many_questions(server):
    source = source_of("aws", server)
    for _ in range(3):
        source.notice()
    assert server.requests == ["PUT /latest/api/token", *[f"GET {ACTION}"] * 3]


def test_aws_an_expired_token_is_replaced_at_once(server):
    source = source_of("aws", server)
    announce("aws", server)
    assert is_noticed(source)
    server.token, server.requests = "token-2", []
    with capture_logs() as logs:
        assert is_noticed(source)
    assert server.requests == [f"GET {ACTION}", "PUT /latest/api/token", f"GET {ACTION}"]
    assert logs == []


def test_aws_a_server_without_tokens_is_an_error_not_silence(server):
    """The answer 404 means `nothing is planned` for one path alone."""
    server.token = None
    with capture_logs() as logs:
        assert source_of("aws", server).notice() is None
    assert [line["event"] for line in logs] == ["preemption_source_unreadable"]


def test_aws_a_token_that_is_none_is_not_kept(server):
    server.token = "<html>\n<p>Welcome</p>\n</html>"
    announce("aws", server)
    source = source_of("aws", server)
    assert not is_noticed(source)
    server.token = "token-2"
    assert is_noticed(source)


def test_gcp_a_host_that_ends_the_machine_for_maintenance_is_a_notice(server):
    server.answers[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert source_of("gcp", server).notice() == Notice("gcp", "TERMINATE_ON_HOST_MAINTENANCE")


def test_gcp_a_live_migration_is_no_notice(server):
    server.answers[MAINTENANCE] = "MIGRATE_ON_HOST_MAINTENANCE"
    assert source_of("gcp", server).notice() is None


@pytest.mark.parametrize("event_type", ["Preempt", "Terminate"])
def test_azure_says_which_event_and_the_earliest_time(server, event_type):
    events(server, scheduled(event_type, not_before="Mon, 19 Sep 2026 18:29:47 GMT"))
    goes_at = datetime(2026, 9, 19, 18, 29, 47, tzinfo=UTC)
    assert source_of("azure", server).notice() == Notice("azure", event_type, goes_at)


def test_azure_the_first_of_several_events_counts_and_a_started_one_is_first(server):
    late = scheduled("Terminate", not_before="Mon, 19 Sep 2026 18:29:47 GMT")
    early = scheduled("Preempt", not_before="Mon, 19 Sep 2026 18:20:00 GMT")
    events(server, late, early)
    notice = source_of("azure", server).notice()
    assert notice is not None
    assert notice.goes_at == datetime(2026, 9, 19, 18, 20, tzinfo=UTC)
    events(server, late, early, scheduled("Terminate", not_before=""))
    assert source_of("azure", server).notice() == Notice("azure", "Terminate", None)


@pytest.mark.parametrize("event_type", ["Freeze", "Reboot", "Redeploy"])
def test_azure_other_events_are_no_notice(server, event_type):
    events(server, scheduled(event_type))
    assert source_of("azure", server).notice() is None


@pytest.mark.parametrize(("resources", "is_ours"), [(["gpu_6", "GPU_7"], True), (["gpu_6"], False), ([], True)])
def test_azure_events_of_other_machines_of_the_scale_set_are_not_ours(server, resources, is_ours):
    events(server, scheduled("Preempt", resources=resources))
    assert is_noticed(source_of("azure", server)) is is_ours


def test_azure_while_our_name_is_unknown_any_event_may_be_ours(server):
    events(server, scheduled("Preempt", resources=["gpu_6"]))
    del server.answers[NAME]
    source = source_of("azure", server)
    assert is_noticed(source)
    server.answers[NAME] = "gpu_7"
    assert not is_noticed(source)


@pytest.mark.parametrize("time", ["soon", "", "Mon, 19 Sep 99999999999999999999 18:29:47 GMT"])
def test_a_time_that_cannot_be_read_does_not_undo_the_announcement(server, time):
    server.answers[ACTION] = json.dumps({"action": "stop", "time": time})
    events(server, scheduled("Preempt", not_before=time))
    assert source_of("aws", server).notice() == Notice("aws", "stop", None)
    assert source_of("azure", server).notice() == Notice("azure", "Preempt", None)


# Servers in trouble


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_silent_server_announces_nothing_and_is_soon_left_alone(server, cloud):
    server.silent = True
    with capture_logs() as logs:
        assert not is_noticed(source_of(cloud, server))
    assert [line["error"] for line in logs] == ["timed out"]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "trouble",
    [
        {"raw": b"SSH-2.0-OpenSSH_9.6\r\n"},
        {"raw": b""},
        {"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\xff\xfe{{{{{{{"},
        {"raw": b"HTTP/1.1 200 OK\r\n\r\n<html><p>Please log in</p></html>"},
        {"raw": b"HTTP/1.1 200 OK\r\n\r\n[" + b"{" * 100_000},
        {"failing_with": HTTPStatus.SERVICE_UNAVAILABLE},
        {"failing_with": HTTPStatus.FORBIDDEN},
    ],
)
def test_garbage_announces_nothing_and_is_logged_once(server, cloud, trouble):
    announce(cloud, server)
    for name, value in trouble.items():
        setattr(server, name, value)
    source = source_of(cloud, server)
    with capture_logs() as logs:
        assert [source.notice() for _ in range(3)] == [None] * 3
    assert [line["event"] for line in logs] == ["preemption_source_unreadable"]
    assert len(logs[0]["error"]) <= 500


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_redirect_is_not_followed(server, cloud):
    with running_metadata_server(QUIET) as elsewhere:
        announce(cloud, elsewhere)
        server.redirecting_to = elsewhere.url
        assert not is_noticed(source_of(cloud, server))
    assert elsewhere.requests == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_server_that_recovers_is_heard_and_its_next_trouble_is_logged_again(server, cloud):
    source = source_of(cloud, server)
    with capture_logs() as logs:
        for trouble in (HTTPStatus.SERVICE_UNAVAILABLE, None, HTTPStatus.SERVICE_UNAVAILABLE):
            server.failing_with = trouble
            assert not is_noticed(source)
        server.failing_with = None
        announce(cloud, server)
        assert is_noticed(source)
    assert [line["event"] for line in logs] == ["preemption_source_unreadable"] * 2


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/", "nonsense", "http://127.0.0.1:1"])
def test_an_address_that_is_no_server_announces_nothing(url):
    source = make_source(make_settings(preemption_source="gcp", preemption_url=url))
    with capture_logs() as logs:
        assert not is_noticed(source)
    assert [line["event"] for line in logs] == ["preemption_source_unreadable"]


# The watch


def watching(source: Source | None, heard: list[Notice]) -> PreemptionWatch:
    return PreemptionWatch(source, make_settings(), on_notice=heard.append)


def watch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "preemption-watch"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_watch_calls_once_however_long_the_notice_stands(server, cloud):
    heard: list[Notice] = []
    with watching(source_of(cloud, server), heard):
        wait_until(lambda: len(server.requests) > 4, what="the source is asked again and again")
        assert heard == []
        announce(cloud, server)
        wait_until(lambda: heard, what="the notice is heard")
        wait_until(lambda: not watch_threads(), what="nobody asks any more")
    assert [notice.source for notice in heard] == [cloud]


def test_the_watch_goes_on_while_its_source_is_in_trouble(server):
    heard: list[Notice] = []
    server.failing_with = HTTPStatus.SERVICE_UNAVAILABLE
    with watching(source_of("aws", server), heard):
        wait_until(lambda: len(server.requests) > 2, what="the server refuses a few times")
        announce("aws", server)
        server.failing_with = None
        wait_until(lambda: heard, what="the notice is heard")


def test_after_the_block_nobody_asks(server):
    with watching(source_of("gcp", server), []):
        wait_until(lambda: server.requests, what="the source is asked")
    assert watch_threads() == []


def test_a_watch_that_hangs_in_a_question_calls_nobody_after_the_block():
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        def notice(self) -> Notice | None:
            asked.set()
            answer.wait(60)
            return Notice("slow", "")

    heard: list[Notice] = []
    with watching(Slow(), heard):
        assert asked.wait(10)
    answer.set()
    wait_until(lambda: not watch_threads(), what="the thread ends")
    assert heard == []


def test_without_a_source_there_is_nothing_to_watch():
    with watching(None, []):
        assert watch_threads() == []


def test_the_watch_logs_under_the_names_of_its_job(tmp_path):
    (tmp_path / "preempted").write_text("spot price")
    heard: list[Notice] = []
    with structlog.contextvars.bound_contextvars(job_id="ftjob-1", attempt=2):
        watch = watching(file_source(tmp_path / "preempted"), heard)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs, watch:
        wait_until(lambda: heard, what="the notice is heard")
    (line,) = logs
    assert (line["event"], line["job_id"], line["attempt"]) == ("machine_is_going", "ftjob-1", 2)
    assert (line["source"], line["reason"]) == ("file", "spot price")
