import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from standardwebhooks import Webhook

from core.builtin_rewards.catalogue import parse_builtin
from core.builtin_rewards.outside import Http, is_public
from tests.unit.builtins.endpoint_server import Endpoint, endpoint
from tests.unit.builtins.grading import rollout
from worker.grading.builtins import endpoint as endpoint_module
from worker.grading.builtins.endpoint import MAX_ANSWER_BYTES, HttpGrader, _CutOff
from worker.grading.grades import Grade, GradeOutcome

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
BATCH = [rollout("one", answer=1, private="p"), rollout("two \ud800", answer=None)]


@pytest.fixture
def here() -> Iterator[Endpoint]:
    with endpoint() as running:
        yield running


def ask(
    here: Endpoint,
    *,
    host: str = "127.0.0.1",
    allow_private: bool = True,
    until: float | None = None,
    **parameters: Any,
) -> list[Grade]:
    checked = parse_builtin({"builtin": "http", "url": f"http://{host}:{here.port}/grade?v=2", **parameters})
    assert isinstance(checked, Http)
    with HttpGrader(checked, allow_private=allow_private) as grader:
        return grader.grade(BATCH, step=7, until=until)


def outcomes(grades: list[Grade]) -> set[GradeOutcome]:
    assert len(grades) == len(BATCH)
    return {grade.outcome for grade in grades}


def test_a_batch_is_posted_with_the_columns_that_were_asked_for(here: Endpoint) -> None:
    here.answer = lambda request: b'{"scores": [0.5, {"score": 1, "style": 0.25}]}'
    first, second = ask(here, sends=["answer"], headers={"X-Token": "t"})
    assert (first.value, second.value, dict(second.metrics)) == (0.5, 1.0, {"style": 0.25})
    ((headers, body),) = here.requests
    assert json.loads(body) == {
        "step": 7,
        "rollouts": [
            {"prompt": "What?", "completion": "one", "columns": {"answer": 1}},
            {"prompt": "What?", "completion": "two \ud800", "columns": {"answer": None}},
        ],
    }
    assert (headers["X-Token"], headers["Content-Type"]) == ("t", "application/json")
    assert "webhook-signature" not in headers


def test_requests_are_signed_as_standard_webhooks(here: Endpoint) -> None:
    assert outcomes(ask(here, secret=SECRET)) == {GradeOutcome.SCORED}
    ((headers, body),) = here.requests
    Webhook(SECRET).verify(body, headers)


def test_null_is_no_answer(here: Endpoint) -> None:
    here.answer = lambda request: b'{"scores": [null, 1]}'
    assert [grade.outcome for grade in ask(here)] == [GradeOutcome.NO_ANSWER, GradeOutcome.SCORED]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_an_endpoint_that_is_down_is_an_infrastructure_error_and_no_zero(here: Endpoint, status: int) -> None:
    here.status = status
    grades = ask(here)
    assert outcomes(grades) == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert grades[0].message == f"the endpoint answered {status}"


def test_a_failure_is_tried_again_once_under_the_same_id(here: Endpoint) -> None:
    here.failures = 1
    assert outcomes(ask(here)) == {GradeOutcome.SCORED}
    first, second = (headers["webhook-id"] for headers, _ in here.requests)
    assert first == second


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404])
def test_other_refusals_are_the_users_to_mend_and_redirects_are_not_followed(here: Endpoint, status: int) -> None:
    here.status = status
    here.headers = {"Location": f"http://127.0.0.1:{here.port}/elsewhere"}
    assert outcomes(ask(here)) == {GradeOutcome.USER_ERROR}
    assert len(here.requests) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>", "the endpoint's answer is not JSON: b'<html>'"),
        (b"[1, 1]", 'the endpoint\'s answer is not {"scores": [...]}'),
        (b'{"scores": [1]}', "the endpoint answered 1 scores for 2 rollouts"),
        (b'{"scores": [NaN, 1]}', "the endpoint's answer is not JSON: b'{\"scores\": [NaN, 1]}'"),
        (b" " * (MAX_ANSWER_BYTES + 1), f"the endpoint's answer is longer than {MAX_ANSWER_BYTES} bytes"),
    ],
)
def test_answers_that_are_no_scores_are_the_users_to_mend(here: Endpoint, answer: bytes, message: str) -> None:
    here.answer = lambda request: answer
    grades = ask(here)
    assert (outcomes(grades), grades[0].message) == ({GradeOutcome.USER_ERROR}, message)


def test_a_score_that_is_no_number_costs_its_own_rollout_only(here: Endpoint) -> None:
    here.answer = lambda request: b'{"scores": ["1", 1]}'
    first, second = ask(here)
    assert (first.outcome, first.message) == (
        GradeOutcome.USER_ERROR,
        "the reward returned str, not a number for index 0",
    )
    assert second.value == 1.0


def test_an_endpoint_that_drips_is_cut_off(here: Endpoint) -> None:
    here.drips = True
    grades = ask(here, timeout_s=0.3)
    assert outcomes(grades) == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert (grades[0].timed_out, grades[0].message) == (True, "the endpoint gave no answer within 0.3 s")


def test_an_endpoint_is_not_asked_again_when_the_time_is_over(here: Endpoint) -> None:
    here.drips = True
    grades = ask(here, until=time.monotonic() + 0.3)
    assert (outcomes(grades), grades[0].timed_out) == ({GradeOutcome.INFRASTRUCTURE_ERROR}, True)
    assert len(here.requests) == 1
    assert str(ask(here, until=time.monotonic())[0].message).startswith("not tried")
    assert len(here.requests) == 1


def test_an_endpoint_that_is_not_there_is_an_infrastructure_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    grades = ask(Endpoint(port=port))
    assert outcomes(grades) == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert not grades[0].timed_out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f.1"])
def test_an_address_that_is_not_public_is_never_asked(here: Endpoint, host: str) -> None:
    grades = ask(here, host=host, allow_private=False)
    assert outcomes(grades) == {GradeOutcome.USER_ERROR}
    assert grades[0].message is not None
    assert "which is not a public address" in grades[0].message
    assert "127.0.0.1, " not in grades[0].message
    assert here.requests == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("1.1.1.1", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),  # cloud metadata
        ("fd00:ec2::254", False),
        ("fe80::1%eth0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:1.1.1.1", True),
        ("64:ff9b::a9fe:a9fe", False),  # NAT64 of the metadata address
        ("2002:7f00:1::", False),  # 6to4 of loopback
        ("168.63.129.16", False),  # Azure's host
        ("::ffff:168.63.129.16", False),
        ("fec0::1", False),
        ("64:ff9b:1::a9fe:a9fe", False),
        ("::a9fe:a9fe", False),
        ("::ffff:0:a9fe:a9fe", False),
        ("2606:4700:4700::1111", True),
    ],
)
def test_public_addresses_are_told_from_the_others(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_name_is_connected_at_the_address_that_was_checked(here: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = socket.getaddrinfo, []

    def resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert outcomes(ask(here, host="grader.example")) == {GradeOutcome.SCORED}
    assert [host for host in asked if host != "127.0.0.1"] == ["grader.example"]
    assert here.requests[0][0]["Host"] == f"grader.example:{here.port}"


def test_a_name_that_is_not_resolved_in_time_is_a_timeout(here: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    try:
        grades = ask(here, host="grader.example", timeout_s=0.2)
    finally:
        over.set()
    assert outcomes(grades) == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert (grades[0].timed_out, here.requests) == (True, [])


@pytest.mark.parametrize(("host", "outcome"), [("localhost", GradeOutcome.SCORED), ("127.0.0.1", None)])
def test_the_certificate_must_be_for_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, outcome: GradeOutcome | None
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with endpoint(tls) as here:
        grades = ask(here, url=f"https://{host}:{here.port}/")
    assert outcomes(grades) == {outcome or GradeOutcome.INFRASTRUCTURE_ERROR}


def test_credentials_are_kept_apart_from_the_parameters() -> None:
    whole = parse_builtin({"builtin": "http", "url": "https://g.example/", "secret": SECRET, "headers": {"X": "t"}})
    assert isinstance(whole, Http)
    bare, credentials = whole.apart()
    assert SECRET not in bare.model_dump_json()
    assert SECRET not in repr(whole)
    assert bare.rejoined(credentials) == whole


def test_a_connection_that_stands_when_the_time_is_over_is_not_waited_for() -> None:
    """The timer ran out between the connection and its watch: nobody would cut it off any more."""
    ours, theirs = socket.socketpair()
    with ours, theirs, _CutOff(time.monotonic()) as cut_off, pytest.raises(TimeoutError):
        cut_off.watch(ours)


def test_a_connection_that_cannot_be_wrapped_is_closed(here: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResourceWarnings are errors here, but not where the collector finds a socket."""
    dialled: list[socket.socket] = []
    dial = endpoint_module._dial

    def dial_and_keep(addresses: Sequence[tuple[str, int]], deadline: float) -> socket.socket:
        dialled.append(dial(addresses, deadline))
        return dialled[-1]

    def no_certificates() -> ssl.SSLContext:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(endpoint_module, "_dial", dial_and_keep)
    monkeypatch.setattr(ssl, "create_default_context", no_certificates)
    assert outcomes(ask(here, url=f"https://127.0.0.1:{here.port}/")) == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert [connection.fileno() for connection in dialled] == [-1, -1]
