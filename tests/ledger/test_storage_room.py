"""What takes room and belongs to nobody, and what a store says that has no room left."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from core.settings import Settings
from core.storage.connect import open_store
from core.storage.folder import PARTIAL_FOLDER, FolderStore
from core.storage.s3 import S3Store, s3_client
from core.storage.store import CHUNK_BYTES, ObjectStore, StoreFull, StoreUnavailable
from tests.polling import wait_until
from tests.servers.s3_gateway import Gateway, running_gateway
from tests.servers.seaweedfs import S3Server

HOUR_S = 3600.0
ROOM_BYTES = 1024 * 1024


def begin_a_write(store: ObjectStore, s3_server: S3Server, key: str = "jobs/1/weights") -> None:
    """What a writer that is killed in the middle leaves behind."""
    if isinstance(store, FolderStore):
        folder = store.root / PARTIAL_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / uuid4().hex).write_bytes(b"half of the weights")
        return
    assert isinstance(store, S3Store)
    client = s3_client(s3_server.endpoint_url)
    place = {"Bucket": store.bucket, "Key": store.prefix + key}
    upload = client.create_multipart_upload(**place)["UploadId"]
    client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"half of the weights")
    client.close()


def test_a_write_that_never_ended_is_given_up_once_it_is_old(store: ObjectStore, s3_server: S3Server) -> None:
    store.put_bytes("jobs/1/whole", b"weights")
    for _ in range(2):
        begin_a_write(store, s3_server)

    assert store.abort_uploads(HOUR_S) == 0
    assert store.abort_uploads(0) == 2
    assert store.abort_uploads(0) == 0
    assert [info.key for info in store.list("")] == ["jobs/1/whole"]


def test_nothing_is_given_up_in_a_store_that_was_never_written(store: ObjectStore) -> None:
    assert store.abort_uploads(0) == 0


def test_uploads_of_another_store_in_the_same_bucket_go_on(s3_settings: Settings, s3_server: S3Server) -> None:
    urls = [s3_settings.store_url.rstrip("/") + ending for ending in ("", "0")]
    ours, others = (open_store(s3_settings.model_copy(update={"store_url": url})) for url in urls)
    begin_a_write(others, s3_server)

    assert ours.abort_uploads(0) == 0
    assert others.abort_uploads(0) == 1


def test_more_dangling_uploads_than_a_page_of_s3_are_given_up(s3_store: S3Store, s3_server: S3Server) -> None:
    client = s3_client(s3_server.endpoint_url)
    with ThreadPoolExecutor(8) as pool:
        for number in range(1003):
            key = f"{s3_store.prefix}many/{number}"
            pool.submit(client.create_multipart_upload, Bucket=s3_store.bucket, Key=key)
    client.close()

    assert s3_store.abort_uploads(0) == 1003


def test_a_living_writer_whose_draft_was_given_up_begins_again(folder_store: FolderStore, tmp_path: Path) -> None:
    pipe, whole = tmp_path / "pipe", tmp_path / "whole"
    os.mkfifo(pipe)
    whole.write_bytes(bytes(2 * CHUNK_BYTES))
    digest = hashlib.sha256(whole.read_bytes()).hexdigest()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(folder_store.put_file, "a/b", pipe, sha256=digest)
        with pipe.open("wb", buffering=0) as feed:
            feed.write(bytes(CHUNK_BYTES))
            wait_until(lambda: folder_store.abort_uploads(0), what="a draft is given up")
            feed.write(bytes(CHUNK_BYTES))
        with pytest.raises(StoreUnavailable):
            writing.result()
    folder_store.put_file("a/b", whole, sha256=digest)

    assert folder_store.get_bytes("a/b") == whole.read_bytes()


def test_a_full_disk_is_named_and_what_was_begun_takes_no_room(small_disk: Path, tmp_path: Path) -> None:
    store, source = FolderStore(small_disk), tmp_path / "source"
    source.write_bytes(bytes(2 * ROOM_BYTES))
    digest = store.put_bytes("a/old", b"old")

    with pytest.raises(StoreFull) as caught:
        store.put_file("a/new", source, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
    with pytest.raises(StoreFull):
        store.put_bytes("a/old", bytes(2 * ROOM_BYTES))

    assert caught.value.fix is not None
    assert [info.key for info in store.list("")] == ["a/old"]
    assert store.get_bytes("a/old") == b"old"
    assert list((small_disk / PARTIAL_FOLDER).iterdir()) == []
    assert store.put_bytes("a/new", b"old") == digest, "there is room again"


def test_a_full_disk_can_still_be_emptied_and_its_check_says_that_it_is_full(small_disk: Path) -> None:
    store = FolderStore(small_disk)
    store.put_bytes("a/large", bytes(ROOM_BYTES - 64 * 1024))
    while True:
        try:
            store.put_bytes(f"a/{uuid4().hex}", bytes(4096))
        except StoreFull:
            break

    with pytest.raises(StoreFull):
        store.check()
    begin = store.clock()
    store.delete("a/large")

    assert store.check().proved
    assert begin <= store.clock()


@pytest.mark.parametrize(
    "full", [(507, "XMinioStorageFull"), (403, "QuotaExceeded"), (507, "SomethingNew")], ids=["MinIO", "Ceph", "507"]
)
def test_an_s3_server_without_room_is_named(
    s3_server: S3Server, s3_settings: Settings, full: tuple[int, str], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    with running_gateway(Gateway(s3_server, full=full)) as gateway:
        store = open_store(s3_settings.model_copy(update={"s3_endpoint_url": gateway.url}))
        with pytest.raises(StoreFull):
            store.put_file("a/b", source, sha256=hashlib.sha256(b"weights").hexdigest())
        with pytest.raises(StoreFull):
            store.check()
