"""Data sets over HTTP: what comes in is checked whole, kept whole, and comes out byte for byte."""

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from core.db import files
from core.db.models import File
from core.db.session import Sessions
from core.ids import FileId, JobId, new_file_id
from tests.api.conftest import OURS
from tests.api.forms import ROWS, problems, upload
from tests.factories import add_job, make_data_ref, make_spec, queued_job
from tests.polling import wait_until

DIGEST = hashlib.sha256(ROWS).hexdigest()


def test_upload_answers_openais_object_with_what_the_check_found(client: TestClient):
    response = upload(client)
    assert response.status_code == 201
    file = response.json()
    assert file["id"].startswith("file-")
    assert file["created_at"] > 1_700_000_000
    assert {key: file[key] for key in file if key not in ("id", "created_at")} == {
        "object": "file",
        "bytes": len(ROWS),
        "filename": "rows.jsonl",
        "purpose": "fine-tune",
        "status": "processed",
        "expires_at": None,
        "sha256": DIGEST,
        "format": "jsonl",
        "rows": 2,
        "distinct_prompts": 2,
        "prompt_kind": "text",
        "columns": ["answer"],
    }
    assert client.get(f"/v1/files/{file['id']}").json() == file


def test_csv_and_parquet_are_recognised(client: TestClient):
    assert upload(client, b"prompt,answer\n2+2?,4\n", filename="a.csv").json()["format"] == "csv"
    table = io.BytesIO()
    pq.write_table(pa.table({"prompt": ["2+2?"], "answer": ["4"]}), table)
    assert upload(client, table.getvalue(), filename="rows").json()["format"] == "parquet"


@pytest.mark.parametrize(
    ("content", "field", "code"),
    [
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2", "not_utf8"),
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2", "invalid_json"),
        (b'{"text": "a"}\n', "line 1", "missing_prompt"),
        (b"", "line 1", "empty_file"),
        (b'{"prompt": "a\\u0000"}\n', "line 1", "invalid_value"),
        (b'{"prompt": "a\\ud800"}\n', "line 1", "invalid_value"),
        (b'{"prompt": "a", "x": NaN}\n', "line 1", None),
    ],
)
def test_bad_rows_are_named_by_line(client: TestClient, content: bytes, field: str, code: str | None):
    response = upload(client, content)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["code"] == "invalid_file"
    assert error["param"] == field
    assert error["fix"]
    if code is not None:
        assert problems(response) == {field: code}
    assert client.get("/v1/files").json()["data"] == []


def test_all_bad_rows_come_at_once(client: TestClient):
    response = upload(client, b'{"prompt": 1}\n{"prompt": "a"}\nnonsense\n{"answer": "4"}\n')
    assert list(problems(response)) == ["line 1", "line 3", "line 4"]


def test_more_problems_than_are_shown_are_counted(client: TestClient):
    response = upload(client, b"nonsense\n" * 50)
    errors = response.json()["error"]["errors"]
    assert len(errors) == 21
    assert errors[-1]["message"] == "30 more problems are not shown"


def test_only_data_sets_can_be_uploaded(client: TestClient):
    response = upload(client, purpose="assistants")
    assert response.status_code == 422
    assert problems(response) == {"purpose": "invalid_value"}


def test_expiry_is_refused_by_name(client: TestClient):
    fields = {"purpose": "fine-tune", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    response = client.post("/v1/files", files={"file": ("a.jsonl", ROWS)}, data=fields)
    assert problems(response) == {"expires_after": "unsupported_field"}


def test_form_problems_come_all_at_once(client: TestClient):
    response = client.post("/v1/files", files={"fil": ("a.jsonl", ROWS)}, data={"purpos": "fine-tune"})
    assert response.status_code == 422
    assert problems(response) == {"fil": "unknown_field", "purpos": "unknown_field", "file": "missing_field"}
    fixes = {error["field"]: error["fix"] for error in response.json()["error"]["errors"]}
    assert fixes["fil"] == "Did you mean `file`?"
    assert fixes["purpos"] == "Did you mean `purpose`?"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "incomplete_form"),
        (b"nonsense", 422, "invalid_form"),
        (b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc', 422, "incomplete_form"),
        (b"--x\r\n" + b"a" * 100_000, 422, "invalid_form"),
    ],
)
def test_broken_form_is_refused(client: TestClient, body: bytes, status: int, code: str):
    response = client.post("/v1/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=x"})
    error = response.json()["error"]
    assert (response.status_code, error["errors"][0]["code"], error["param"]) == (status, code, "body")
    assert error["fix"]


def test_body_that_is_no_form_is_415(client: TestClient):
    response = client.post("/v1/files", json={"file": "x"})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd.jsonl", "passwd.jsonl"),
        ("C:\\data\\rows.jsonl", "rows.jsonl"),
        ("räksmörgås 🦐.jsonl", "räksmörgås 🦐.jsonl"),
        ("a\u202eb\u009f.jsonl", "ab.jsonl"),
        ("x" * 300 + ".jsonl", "x" * 194 + ".jsonl"),
    ],
)
def test_filename_is_made_safe(client: TestClient, sent: str, kept: str):
    file = upload(client, filename=sent).json()
    assert file["filename"] == kept
    assert client.get(f"/v1/files/{file['id']}/content").status_code == 200


def test_list_pages_newest_first_and_oldest_first(client: TestClient):
    ids = [upload(client, filename=f"{n}.jsonl").json()["id"] for n in range(5)]
    first = client.get("/v1/files?limit=2").json()
    assert [file["id"] for file in first["data"]] == [ids[4], ids[3]]
    assert (first["object"], first["has_more"], first["first_id"], first["last_id"]) == ("list", True, ids[4], ids[3])
    last = client.get(f"/v1/files?limit=3&after={first['last_id']}").json()
    assert [file["id"] for file in last["data"]] == [ids[2], ids[1], ids[0]]
    assert last["has_more"] is False
    rising = client.get(f"/v1/files?order=asc&after={ids[1]}").json()
    assert [file["id"] for file in rising["data"]] == ids[2:]


def test_empty_list_has_no_ids(client: TestClient):
    empty = {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
    assert client.get("/v1/files?purpose=fine-tune-results").json() == empty


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=%00", "order=up", "purpose=x", "limt=5"])
def test_bad_list_parameters_are_refused(client: TestClient, query: str):
    response = client.get(f"/v1/files?{query}")
    assert response.status_code == 422
    assert response.json()["error"]["param"] == query.partition("=")[0]
    assert response.json()["error"]["fix"]


def test_content_comes_back_byte_for_byte(client: TestClient):
    file = upload(client).json()
    response = client.get(f"/v1/files/{file['id']}/content")
    assert response.content == ROWS
    assert response.headers["etag"] == f'"{DIGEST}"'
    assert response.headers["content-type"] == "application/jsonl"
    assert response.headers["content-length"] == str(len(ROWS))
    assert response.headers["accept-ranges"] == "bytes"
    assert 'filename="rows.jsonl"' in response.headers["content-disposition"]


def test_head_tells_without_sending(client: TestClient):
    file = upload(client).json()
    response = client.head(f"/v1/files/{file['id']}/content")
    assert response.status_code == 200
    assert response.content == b""
    assert response.headers["content-length"] == str(len(ROWS))
    assert response.headers["etag"] == f'"{DIGEST}"'


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=0-3", 0, 4), ("bytes=5-", 5, None), ("bytes=-4", -4, None), ("bytes=3-999999", 3, None)],
)
def test_range_is_answered_with_its_bytes(client: TestClient, asked: str, start: int, end: int | None):
    file = upload(client).json()
    response = client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    assert response.status_code == 206
    assert response.content == ROWS[start:end]
    first = start % len(ROWS)
    assert response.headers["content-range"] == f"bytes {first}-{first + len(response.content) - 1}/{len(ROWS)}"


@pytest.mark.parametrize("asked", ["bytes=999999-", "bytes=-0"])
def test_range_beyond_the_end_is_416(client: TestClient, asked: str):
    file = upload(client).json()
    response = client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(ROWS)}"
    assert response.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "bytes=5-2", "lines=1-2", "bytes=-", "bytes=" + "9" * 100 + "-"])
def test_range_that_is_not_understood_gets_the_whole(client: TestClient, asked: str):
    file = upload(client).json()
    response = client.get(f"/v1/files/{file['id']}/content", headers={"Range": asked})
    assert response.status_code == 200
    assert response.content == ROWS


def test_if_range_of_other_content_gets_the_whole(client: TestClient):
    file = upload(client).json()
    headers = {"Range": "bytes=0-3", "If-Range": f'"{"0" * 64}"'}
    assert client.get(f"/v1/files/{file['id']}/content", headers=headers).status_code == 200
    headers["If-Range"] = f'"{DIGEST}"'
    assert client.get(f"/v1/files/{file['id']}/content", headers=headers).status_code == 206


@pytest.mark.parametrize("tag", [f'"{DIGEST}"', f'W/"{DIGEST}"', f'"x", "{DIGEST}"', "*"])
def test_content_that_the_client_has_is_304(client: TestClient, tag: str):
    file = upload(client).json()
    response = client.get(f"/v1/files/{file['id']}/content", headers={"If-None-Match": tag})
    assert response.status_code == 304
    assert response.content == b""
    assert response.headers["etag"] == f'"{DIGEST}"'


def test_deleted_file_is_gone_with_its_object(client: TestClient, store_folder: Path):
    file = upload(client).json()
    kept = store_folder / "files" / file["id"]
    assert kept.read_bytes() == ROWS
    response = client.delete(f"/v1/files/{file['id']}")
    assert response.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert not kept.exists()
    for path in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        assert client.get(path).status_code == 404
    assert client.delete(f"/v1/files/{file['id']}").status_code == 404
    assert client.get("/v1/files").json()["data"] == []


def test_object_that_was_lost_is_told_apart_from_a_missing_file(client: TestClient, store_folder: Path):
    file = upload(client).json()
    (store_folder / "files" / file["id"]).unlink()
    response = client.get(f"/v1/files/{file['id']}/content")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "object_not_found"


def test_file_that_an_unfinished_job_needs_cannot_be_deleted(client: TestClient, sessions: Sessions):
    file = upload(client).json()
    job_id = use_in_job(sessions, file["id"])
    response = client.delete(f"/v1/files/{file['id']}")
    assert response.status_code == 409
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("file_in_use", "file_id")
    assert error["fix"]
    assert response.headers["x-should-retry"] == "false"  # OpenAI's client would try twice more
    assert client.get(f"/v1/files/{file['id']}/content").content == ROWS
    client.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert client.delete(f"/v1/files/{file['id']}").status_code == 200


def test_delete_waits_for_a_job_that_is_being_created_with_the_file(client: TestClient, sessions: Sessions):
    file = upload(client).json()
    with ThreadPoolExecutor(1) as threads, sessions.begin() as session:
        assert files.get_owned_to_use(session, OURS, FileId(file["id"]))
        deletion = threads.submit(client.delete, f"/v1/files/{file['id']}")
        wait_until(lambda: waits_for_a_lock(sessions), what="the deletion waits")
        add_job(session, tenant_id=OURS, spec=make_spec(training=make_data_ref(file_id=FileId(file["id"]))))
        session.commit()
        assert deletion.result().status_code == 409


def test_deleting_a_result_file_leaves_the_jobs_artifact(client: TestClient, sessions: Sessions, store_folder: Path):
    artifact = store_folder / "jobs" / "results.json"
    artifact.parent.mkdir(parents=True)
    artifact.write_bytes(b"{}")
    row = File(
        id=new_file_id(),
        tenant_id=OURS,
        filename="results.json",
        purpose="fine-tune-results",
        size_bytes=2,
        sha256=hashlib.sha256(b"{}").hexdigest(),
        key="jobs/results.json",
        job_id=queued_job(sessions, tenant_id=OURS),
    )
    with sessions.begin() as session:
        files.add(session, row)
    response = client.get(f"/v1/files/{row.id}/content")
    assert (response.content, response.headers["content-type"]) == (b"{}", "application/json")
    assert client.get("/v1/files?purpose=fine-tune-results").json()["data"][0]["format"] is None
    assert client.delete(f"/v1/files/{row.id}").status_code == 200
    assert artifact.exists()


def use_in_job(sessions: Sessions, file_id: str) -> JobId:
    return queued_job(sessions, tenant_id=OURS, spec=make_spec(training=make_data_ref(file_id=FileId(file_id))))


def waits_for_a_lock(sessions: Sessions) -> bool:
    with sessions() as session:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return session.scalar(text(query)) == 1
