"""One envelope for everything that goes wrong, and nothing that a client sends is a 500."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url

from app.main import create_app
from core.settings import Settings
from tests.api.forms import problems, upload

KEYS = ["message", "type", "code", "param", "fix", "docs", "request_id", "errors"]
JSON = {"Content-Type": "application/json"}


def test_every_error_has_every_key_of_the_envelope(client: TestClient, anonymous: TestClient):
    answers = [
        anonymous.get("/v1/files"),
        client.get("/v1/files/file-x"),
        client.get("/nowhere"),
        client.put("/v1/files"),
        client.get("/v1/files?limit=0"),
        client.post("/v1/rewards", content=b"{", headers=JSON),
        client.post("/v1/rewards", content=b"x"),
        client.post("/v1/rewards", content=b"1" * 100_000, headers=JSON),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 404, 405, 422, 422, 415, 413]
    for answer in answers:
        assert list(answer.json()) == ["error"]
        error = answer.json()["error"]
        assert list(error) == KEYS
        assert error["request_id"] == answer.headers["x-request-id"]
        assert error["docs"].endswith("#" + error["code"])
        assert error["fix"]
        assert all(list(problem) == ["field", "message", "code", "fix"] for problem in error["errors"])


def test_request_id_of_the_client_is_kept_if_it_is_sane(client: TestClient):
    assert client.get("/healthz", headers={"x-request-id": "trace-1.a:b_c"}).headers["x-request-id"] == "trace-1.a:b_c"


@pytest.mark.parametrize("offered", ["", "a b", "x" * 129, "a\tb", "{}", "\u00e4"])
def test_request_id_that_could_break_a_log_is_replaced(client: TestClient, offered: str):
    response = client.get("/nowhere", headers={"x-request-id": offered.encode("latin-1")})
    assert response.headers["x-request-id"].startswith("req-")
    assert response.json()["error"]["request_id"] == response.headers["x-request-id"]


def test_unknown_path_names_the_nearest(client: TestClient):
    response = client.get("/v1/file")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "route_not_found"
    assert response.json()["error"]["fix"] == "Did you mean /v1/files?"
    assert client.get("/v1/files/").status_code == 404


def test_wrong_method_names_all_methods_of_the_resource(client: TestClient):
    response = client.patch("/v1/files")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"
    assert response.json()["error"]["fix"] == "Use GET, POST."
    assert client.post("/v1/files/file-x/content").headers["allow"] == "GET, HEAD"


def test_unknown_fields_and_wrong_types_come_at_once_with_the_nearest_name(client: TestClient):
    response = client.post("/v1/rewards", json={"nam": "x", "source": 5, "entry_points": "f"})
    assert response.status_code == 422
    assert problems(response) == {
        "name": "missing_field",
        "source": "invalid_type",
        "nam": "unknown_field",
        "entry_points": "unknown_field",
    }
    fixes = {problem["field"]: problem["fix"] for problem in response.json()["error"]["errors"]}
    assert fixes["nam"] == "Did you mean `name`?"
    assert fixes["entry_points"] == "Did you mean `entry_point`?"


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        (b"", "body", "missing_body"),
        (b"{", "body", "invalid_json"),
        (b'{"name": "a",}', "body", "invalid_json"),
        (b"\xff\xfe{\x00}\x00", "body", "invalid_json"),
        (b'{"name": "\xff"}', "body", "invalid_json"),
        (b"[1]", "body", "invalid_type"),
        (b"null", "body", "invalid_type"),
        (b"[" * 60_000, "body", "nested_too_deep"),
        (b'{"a":' * 10_000, "body", "nested_too_deep"),
        (b'{"name": ' + b"[" * 70 + b"]" * 70 + b"}", "name[0][0][0][0][0][0][0]", "nested_too_deep"),
        (b'{"name": "a\\u0000b"}', "name", "invalid_value"),
        (b'{"name": "\\ud800"}', "name", "invalid_value"),
        (b'{"\\u0000": 1}', "\x00", "invalid_value"),
        (b'{"\\ud800": 1}', "\\ud800", "invalid_value"),
        (b'{"x": [{"y": NaN}]}', "x[0].y", "invalid_value"),
        (b'{"x": -Infinity}', "x", "invalid_value"),
        (b'{"x": 1e999}', "x", "invalid_value"),
        (b'{"x": ' + b"9" * 5000 + b"}", "x", "invalid_value"),
        (b'{"x": 9223372036854775808}', "x", "invalid_value"),
        (b'{"x": -100000000000000000000}', "x", "invalid_value"),
    ],
)
def test_body_that_postgres_or_json_could_not_carry_is_422(client: TestClient, body: bytes, field: str, code: str):
    response = client.post("/v1/rewards", content=body, headers=JSON)
    assert response.status_code == 422
    assert problems(response) == {field: code}
    assert response.json()["error"]["param"] == field
    assert response.json()["error"]["fix"]


def test_emoji_written_as_surrogate_pair_is_text(client: TestClient):
    body = b'{"name": "a", "source": "def reward(completion):\\n    return 1.0  # \\ud83d\\ude00\\n"}'
    assert client.post("/v1/rewards", content=body, headers=JSON).status_code == 201


@pytest.mark.parametrize("path", ["/v1/files/%00", "/v1/rewards/a%00b", "/v1/rewards/x/versions/%00"])
def test_nul_in_a_path_is_422(client: TestClient, path: str):
    assert client.get(path).status_code == 422


@pytest.mark.parametrize(
    "path", ["/v1/files/%ff", "/v1/files/%ed%a0%80", "/v1/files?after=%ed%a0%80", "/v1/files/" + "a" * 5000]
)
def test_bytes_that_are_no_text_in_a_url_are_no_500(client: TestClient, path: str):
    assert client.get(path).status_code in (404, 422)


@pytest.mark.parametrize("version", ["0", "-1", "x", "1.5", "2147483648", "9" * 5000])
def test_version_that_is_no_number_is_422(client: TestClient, version: str):
    response = client.get(f"/v1/rewards/rew-x/versions/{version}")
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "version"


def test_body_over_the_cap_is_413_and_names_the_cap(client: TestClient, settings: Settings):
    response = client.post("/v1/rewards", content=b" " * (settings.max_body_bytes + 1), headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "The body is larger than 64 KiB."


def test_body_over_the_cap_without_a_length_is_413(client: TestClient, settings: Settings):
    pieces = (b" " * 1000 for _ in range(settings.max_body_bytes // 1000 + 2))
    response = client.post("/v1/rewards", content=pieces, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30])
def test_strange_content_length_is_no_500(client: TestClient, length: str):
    for path, kind in (("/v1/rewards", "application/json"), ("/v1/files", "multipart/form-data; boundary=x")):
        response = client.post(path, content=b"x", headers={"Content-Length": length, "Content-Type": kind})
        assert response.status_code in (413, 422)


def test_file_over_the_cap_is_413(client: TestClient, settings: Settings):
    line = b'{"prompt": "' + b"a" * 988 + b'"}\n'
    rows = line * (settings.max_file_bytes // len(line) + 1)
    response = upload(client, rows)
    assert response.status_code == 413
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("payload_too_large", "file")
    assert error["message"] == "The file is larger than 256 KiB."
    assert f"at most {settings.max_file_bytes} bytes" in error["fix"]
    assert upload(client, rows[: len(line) * 200]).status_code == 201


def test_file_far_over_the_cap_is_413_by_its_length_alone(client: TestClient, settings: Settings):
    headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": str(settings.max_file_bytes * 2)}
    assert client.post("/v1/files", content=b"", headers=headers).status_code == 413


def test_what_nobody_expected_is_a_plain_500_and_its_reason_stays_in_the_log(
    settings: Settings, capsys: pytest.CaptureFixture[str]
):
    app = create_app(settings.model_copy(update={"log_format": "json"}))

    @app.get("/broken", include_in_schema=False)
    def broken() -> None:
        password = "a secret"
        raise ZeroDivisionError(password[:1])

    with TestClient(app) as client:
        response = client.get("/broken")
    assert response.status_code == 500
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "ZeroDivisionError" not in response.text
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    failure = next(event for event in logged if event["event"] == "request_failed")
    assert failure["request_id"] == error["request_id"] == response.headers["x-request-id"]
    assert failure["exception"][-1]["exc_type"] == "ZeroDivisionError"
    assert "a secret" not in json.dumps(failure)


def test_database_away_is_503_that_says_when_to_try_again(settings: Settings):
    away = make_url(settings.database_url).set(host="127.0.0.1", port=9, query={}).render_as_string(hide_password=False)
    with TestClient(create_app(settings.model_copy(update={"database_url": away}))) as client:
        response = client.get("/v1/files", headers={"Authorization": "Bearer pk_any"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "service_unavailable")
    assert "127.0.0.1" not in response.text


def test_upload_that_finds_no_room_is_503(client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    response = upload(client)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "service_unavailable"
