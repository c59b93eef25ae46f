"""One contract, two stores: a folder, and S3 on a real SeaweedFS."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event

import httpx
import pytest

from core.settings import Settings
from core.storage.connect import open_store
from core.storage.folder import PARTIAL_FOLDER, SHA256_ATTRIBUTE, FolderStore
from core.storage.s3 import MULTIPART_BYTES, S3Store
from core.storage.store import (
    CHUNK_BYTES,
    DigestMismatch,
    InvalidKey,
    ObjectExists,
    ObjectNotFound,
    ObjectStore,
)

OTHER_DIGEST = hashlib.sha256(b"other bytes").hexdigest()


def keys_under(store: ObjectStore, prefix: str) -> list[str]:
    return sorted(info.key for info in store.list(prefix))


@pytest.mark.parametrize("data", [b"", b"a", os.urandom(3 * CHUNK_BYTES + 7)], ids=["empty", "one byte", "some MiB"])
def test_bytes_come_back_as_they_went_in(store: ObjectStore, data: bytes) -> None:
    digest = store.put_bytes("a/b.bin", data)

    assert digest == hashlib.sha256(data).hexdigest()
    assert store.get_bytes("a/b.bin") == data
    info = store.head("a/b.bin")
    assert info is not None
    assert (info.key, info.size_bytes, info.sha256) == ("a/b.bin", len(data), digest)


@pytest.mark.parametrize("size_bytes", [5, MULTIPART_BYTES + 5], ids=["small", "multipart"])
def test_a_file_comes_back_as_it_went_in(store: ObjectStore, tmp_path: Path, size_bytes: int) -> None:
    source, target = tmp_path / "source", tmp_path / "new folder" / "target"
    source.write_bytes((os.urandom(CHUNK_BYTES) * (size_bytes // CHUNK_BYTES + 1))[:size_bytes])
    digest = hashlib.sha256(source.read_bytes()).hexdigest()

    store.put_file("a/b", source, sha256=digest)
    store.get_file("a/b", target, sha256=digest)

    assert target.read_bytes() == source.read_bytes()
    info = store.head("a/b")
    assert info is not None
    assert (info.size_bytes, info.sha256) == (size_bytes, digest)


def test_a_second_put_replaces_the_first(store: ObjectStore) -> None:
    store.put_bytes("a/b", b"first, and longer")
    digest = store.put_bytes("a/b", b"second")

    assert store.get_bytes("a/b") == b"second"
    info = store.head("a/b")
    assert info is not None
    assert info.sha256 == digest


@pytest.mark.parametrize("size_bytes", [5, MULTIPART_BYTES + 5], ids=["small", "multipart"])
def test_a_file_that_is_not_what_its_digest_says_is_not_stored(
    store: ObjectStore, tmp_path: Path, size_bytes: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(size_bytes))
    store.put_bytes("a/old", b"old")

    for key in ("a/old", "a/new"):
        with pytest.raises(DigestMismatch):
            store.put_file(key, source, sha256=OTHER_DIGEST)

    assert store.get_bytes("a/old") == b"old"
    assert keys_under(store, "") == ["a/old"]


def test_an_object_that_is_not_what_its_digest_says_is_not_delivered(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("a/b", b"these bytes")
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "file").write_bytes(b"what was here before")

    with pytest.raises(DigestMismatch):
        store.get_file("a/b", folder / "file", sha256=OTHER_DIGEST)

    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_bytes() == b"what was here before"


def test_a_missing_object_is_named_by_every_reader(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("a/b", b"")

    for missing in ("nothing", "a", "a/c"):
        assert store.head(missing) is None
        for read in (store.get_bytes, store.open, lambda key: store.get_file(key, tmp_path / "target", sha256=None)):
            with pytest.raises(ObjectNotFound, match=missing):
                read(missing)
    assert not (tmp_path / "target").exists()


def test_deleting_what_is_not_there_is_no_error(store: ObjectStore) -> None:
    store.delete("a/b")
    store.delete_prefix("a/")
    store.put_bytes("a/b", b"x")
    store.delete("a/b")

    assert store.head("a/b") is None
    assert keys_under(store, "") == []


def test_a_conditional_create_never_overwrites(store: ObjectStore) -> None:
    digest = store.put_new_bytes("a/b", b"first")

    with pytest.raises(ObjectExists):
        store.put_new_bytes("a/b", b"second")

    assert digest == hashlib.sha256(b"first").hexdigest()
    assert store.get_bytes("a/b") == b"first"


def test_of_racing_conditional_creates_exactly_one_wins(store: ObjectStore) -> None:
    def create(number: int) -> bytes | None:
        data = str(number).encode()
        try:
            store.put_new_bytes("a/b", data)
        except ObjectExists:
            return None
        return data

    with ThreadPoolExecutor(8) as pool:
        winners = [data for data in pool.map(create, range(16)) if data is not None]

    assert winners == [store.get_bytes("a/b")]


@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 1), (3, None), (2, 5), (9, 10), (8, 100), (10, None), (100, 200)]
)
def test_a_range_is_a_slice(store: ObjectStore, start: int, end: int | None) -> None:
    store.put_bytes("a/b", b"0123456789")

    assert b"".join(store.open("a/b", start=start, end=end)) == b"0123456789"[start:end]


def test_a_large_object_is_read_in_pieces(store: ObjectStore) -> None:
    data = os.urandom(3 * CHUNK_BYTES)
    store.put_bytes("a/b", data)

    pieces = list(store.open("a/b", start=5, end=3 * CHUNK_BYTES - 5))

    assert b"".join(pieces) == data[5:-5]
    assert len(pieces) >= 3
    assert max(map(len, pieces)) <= CHUNK_BYTES


def test_a_reader_that_stops_early_leaves_nothing_open(store: ObjectStore) -> None:
    store.put_bytes("a/b", os.urandom(3 * CHUNK_BYTES))

    store.open("a/b")  # warnings are errors here, and Python warns of an open file or socket
    next(store.open("a/b"))


def test_list_stays_under_its_prefix(store: ObjectStore) -> None:
    for key in ("jobs/10/a", "jobs/1/b/c", "jobs/1/a", "jobs/1/b.txt", "files/x"):
        store.put_bytes(key, key.encode())

    assert keys_under(store, "jobs/1/") == ["jobs/1/a", "jobs/1/b.txt", "jobs/1/b/c"]
    assert keys_under(store, "") == ["files/x", "jobs/1/a", "jobs/1/b.txt", "jobs/1/b/c", "jobs/10/a"]
    assert [info.size_bytes for info in store.list("jobs/10/")] == [len("jobs/10/a")]
    assert keys_under(store, "nothing/") == []


def test_every_object_tells_when_it_was_written_by_the_clock_of_its_store(store: ObjectStore) -> None:
    before = store.clock() - timedelta(seconds=1)  # S3 tells whole seconds, and a kernel its last tick
    store.put_bytes("a/b", b"x")

    (listed,) = store.list("a/")
    head = store.head("a/b")

    assert head is not None
    for info in (listed, head):
        assert before <= info.modified_at <= store.clock()


def test_delete_prefix_spares_the_neighbours(store: ObjectStore) -> None:
    for key in ("jobs/10/a", "jobs/1/b/c", "jobs/1/a"):
        store.put_bytes(key, b"x")

    store.delete_prefix("jobs/1/")

    assert keys_under(store, "") == ["jobs/10/a"]
    store.put_bytes("jobs/1/a", b"the place can be used again")


def test_delete_prefix_and_list_go_beyond_one_page_of_s3(s3_store: S3Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: s3_store.put_bytes(f"many/{number:04}", b""), range(1003)))
    assert len(keys_under(s3_store, "many/")) == 1003

    s3_store.delete_prefix("many/")

    assert keys_under(s3_store, "many/") == []


@pytest.mark.parametrize(
    "key",
    [
        "", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", ".partial/x",
        "a\0b", "a\nb", "a b", "a\\..\\b", "é", "\ud800", "x" * 900, "a/" * 500 + "b",
    ],
)  # fmt: skip
def test_a_key_that_is_no_plain_path_is_refused_everywhere(store: ObjectStore, tmp_path: Path, key: str) -> None:
    (tmp_path / "source").write_bytes(b"")
    uses = [
        lambda: store.put_file(key, tmp_path / "source", sha256=hashlib.sha256(b"").hexdigest()),
        lambda: store.put_bytes(key, b""),
        lambda: store.put_new_bytes(key, b""),
        lambda: store.get_file(key, tmp_path / "target", sha256=None),
        lambda: store.get_bytes(key),
        lambda: store.open(key),
        lambda: store.head(key),
        lambda: store.delete(key),
    ]
    for use in uses:
        with pytest.raises(InvalidKey):
            use()
    assert keys_under(store, "") == []


@pytest.mark.parametrize("prefix", ["", "/", "jobs", "../", "jobs//", "jobs/../../"])
def test_a_prefix_that_could_reach_too_far_is_refused(store: ObjectStore, prefix: str) -> None:
    store.put_bytes("jobs/1/a", b"x")

    with pytest.raises(InvalidKey):
        store.delete_prefix(prefix)

    assert keys_under(store, "") == ["jobs/1/a"]


def test_a_reader_sees_one_whole_version_while_a_writer_overwrites(store: ObjectStore) -> None:
    versions = [bytes([number]) * (CHUNK_BYTES + number) for number in range(4)]
    store.put_bytes("a/b", versions[0])
    done = Event()

    def overwrite() -> None:
        try:
            for number in range(24):
                store.put_bytes("a/b", versions[number % 4])
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(overwrite)
        while not done.is_set():
            assert store.get_bytes("a/b") in versions
        writer.result()


def test_a_writer_killed_in_the_middle_leaves_nothing_to_see(folder_store: FolderStore, tmp_path: Path) -> None:
    folder_store.put_bytes("a/old", b"old")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = (
        "import sys; from pathlib import Path; from core.storage.folder import FolderStore;"
        "FolderStore(Path(sys.argv[1])).put_file(sys.argv[3], Path(sys.argv[2]), sha256='0' * 64)"
    )
    for key in ("a/old", "a/new"):
        writer = subprocess.Popen([sys.executable, "-c", program, str(folder_store.root), str(pipe), key])
        with pipe.open("wb", buffering=0) as feed:
            feed.write(bytes(2 * CHUNK_BYTES))
            wait_for_draft(folder_store.root / PARTIAL_FOLDER, size_bytes=CHUNK_BYTES)
            writer.send_signal(signal.SIGKILL)
            writer.wait()

    assert folder_store.get_bytes("a/old") == b"old"
    assert keys_under(folder_store, "") == ["a/old"]
    assert folder_store.head("a/new") is None


def wait_for_draft(folder: Path, *, size_bytes: int) -> None:
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size >= size_bytes for path in folder.iterdir()):
        assert time.monotonic() < deadline, "the writer wrote nothing"
        time.sleep(0.01)


def test_the_folder_notices_bytes_that_rot(folder_store: FolderStore, tmp_path: Path) -> None:
    digest = folder_store.put_bytes("a/b", b"good")
    (folder_store.root / "a/b").write_bytes(b"evil")

    with pytest.raises(DigestMismatch):
        folder_store.get_file("a/b", tmp_path / "target", sha256=digest)


def test_the_folder_computes_a_digest_that_its_file_system_did_not_keep(folder_store: FolderStore) -> None:
    digest = folder_store.put_bytes("a/b", b"bytes")
    os.removexattr(folder_store.root / "a/b", SHA256_ATTRIBUTE)

    info = folder_store.head("a/b")

    assert info is not None
    assert info.sha256 == digest


def test_a_presigned_url_downloads_without_credentials(s3_store: S3Store) -> None:
    s3_store.put_bytes("jobs/1/adapter.zip", b"weights")

    url = s3_store.presign(
        "jobs/1/adapter.zip", filename='my "ädapter"\r\nX: 1.zip', content_type="application/zip", expires_s=60
    )

    assert url is not None
    answer = httpx.get(url)
    assert (answer.status_code, answer.content) == (200, b"weights")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == (
        "attachment; filename*=UTF-8''my%20%22%C3%A4dapter%22%0D%0AX%3A%201.zip"
    )


@pytest.mark.parametrize(
    ("part", "forged"),
    [("jobs/1/adapter.zip", "jobs/2/adapter.zip"), ("X-Amz-Expires=60", "X-Amz-Expires=6000"), ("mine.zip", "x.html")],
    ids=["another object", "a longer life", "another name"],
)
def test_a_forged_presigned_url_is_refused(s3_store: S3Store, part: str, forged: str) -> None:
    for number in (1, 2):
        s3_store.put_bytes(f"jobs/{number}/adapter.zip", b"weights")
    url = s3_store.presign("jobs/1/adapter.zip", filename="mine.zip", content_type="application/zip", expires_s=60)

    assert url is not None
    assert part in url
    assert httpx.get(url.replace(part, forged)).status_code == 403


def test_clients_are_not_sent_to_a_store_that_they_cannot_reach(
    folder_store: FolderStore, s3_settings: Settings
) -> None:
    private_s3 = open_store(s3_settings.model_copy(update={"s3_public_endpoint_url": None}))

    for store in (folder_store, private_s3):
        assert store.presign("a/b", filename="b", content_type="text/plain", expires_s=60) is None
