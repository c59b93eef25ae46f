"""Objects in a bucket of AWS S3 or a server that speaks it; digests travel with every request and are checked there."""

import base64
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import boto3
from boto3.exceptions import RetriesExceededError
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.httpsession import URLLib3Session

from core import keys
from core.storage.store import (
    CHUNK_BYTES,
    OCTETS,
    DigestMismatch,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    Proof,
    SelfTest,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
    arriving,
    check_key,
    check_prefix,
    digest_of,
    require_digest,
)

MULTIPART_BYTES = 64 * 1024 * 1024
"""Larger files travel in parts; smaller ones in one request that carries the digest of the whole."""
_TRANSFER = TransferConfig(multipart_threshold=MULTIPART_BYTES, multipart_chunksize=16 * 1024 * 1024, max_concurrency=4)
_DELETE_BATCH = 1000

_MISSING = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "412"}
_DAMAGED = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_FULL = {
    "QuotaExceeded",  # Ceph
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
}
_FULL_TEXTS = ("no space left on device", "no writable volumes", "no free volumes")
"""In the message of servers that have no code for it."""
_FIXES = {
    "NoSuchBucket": "Create the bucket, or name an existing one in PODIUM_STORE_URL.",
    "AccessDenied": "Allow this key to get, put, list and delete objects of the bucket.",
    "InvalidAccessKeyId": "Check AWS_ACCESS_KEY_ID.",
    "SignatureDoesNotMatch": "Check AWS_SECRET_ACCESS_KEY, and that this machine's clock is right.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "PermanentRedirect": "Set AWS_DEFAULT_REGION to the bucket's region.",
    "403": "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they may do with the bucket.",
}


class S3Store:
    """One prefix of one bucket. Credentials and region come from the usual AWS variables."""

    def __init__(
        self, bucket: str, *, prefix: str = "", endpoint_url: str | None = None, public_endpoint_url: str | None = None
    ) -> None:
        """`public_endpoint_url`: the server's address for clients, which presigned URLs carry; AWS needs none."""
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client = s3_client(endpoint_url)
        if public_endpoint_url == endpoint_url:
            self._presigner = self._client
        else:
            self._presigner = s3_client(public_endpoint_url) if public_endpoint_url else None

    def put_file(self, key: str, path: Path, *, sha256: str, content_type: str = OCTETS) -> None:
        if path.stat().st_size < MULTIPART_BYTES:
            with path.open("rb") as body:
                self._put(key, body, sha256, content_type)
            return
        require_digest(digest_of(path), sha256, path.name)
        extra = {"ContentType": content_type, "Metadata": {"sha256": sha256}, "ChecksumAlgorithm": "SHA256"}
        with path.open("rb") as file, _translated(key):
            self._client.upload_fileobj(file, self.bucket, self._full(key), ExtraArgs=extra, Config=_TRANSFER)

    def put_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        return self._put(key, data, hashlib.sha256(data).hexdigest(), content_type)

    def put_new_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        return self._put(key, data, hashlib.sha256(data).hexdigest(), content_type, IfNoneMatch="*")

    def get_file(self, key: str, path: Path, *, sha256: str | None) -> None:
        with arriving(path, sha256=sha256) as target, _translated(key):
            self._client.download_file(self.bucket, self._full(key), str(target), Config=_TRANSFER)

    def get_bytes(self, key: str) -> bytes:
        return b"".join(self.open(key))

    def open(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        pieces = self._pieces(key, start, end)
        next(pieces)  # sends the request now, so that a missing object raises here
        return pieces

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with _translated(key):
                answer = self._client.head_object(Bucket=self.bucket, Key=self._full(key))
        except ObjectNotFound:
            return None
        return ObjectInfo(key, answer["ContentLength"], answer["Metadata"].get("sha256"), answer["LastModified"])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        full = self.prefix + (check_prefix(prefix) if prefix else "")
        with _translated(full):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=full):
                for item in page.get("Contents", ()):
                    yield ObjectInfo(item["Key"].removeprefix(self.prefix), item["Size"], None, item["LastModified"])

    def delete(self, key: str) -> None:
        with _translated(key):
            self._client.delete_object(Bucket=self.bucket, Key=self._full(key))

    def delete_prefix(self, prefix: str) -> None:
        keys = [{"Key": self._full(info.key)} for info in self.list(check_prefix(prefix))]
        for first in range(0, len(keys), _DELETE_BATCH):
            batch = {"Objects": keys[first : first + _DELETE_BATCH], "Quiet": True}
            with _translated(prefix):
                answer = self._client.delete_objects(Bucket=self.bucket, Delete=batch)
            for failed in answer.get("Errors", ()):
                raise _error_of(failed["Code"], failed.get("Message", ""), failed["Key"])

    def abort_uploads(self, older_than_s: float) -> int:
        before, aborted = self.clock() - timedelta(seconds=older_than_s), 0
        with _translated(self.prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix
            )
            for upload in (upload for page in pages for upload in page.get("Uploads", ())):
                if upload["Initiated"] <= before:
                    aborted += self._abort(upload["Key"], upload["UploadId"])
        return aborted

    def clock(self) -> datetime:
        with _translated(self.prefix):
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix, MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return datetime.now(UTC) if date is None else parsedate_to_datetime(date)

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        if self._presigner is None:
            return None
        params = {
            "Bucket": self.bucket,
            "Key": self._full(key),
            "ResponseContentDisposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",  # RFC 6266
            "ResponseContentType": content_type,
        }
        with _translated(key):
            return str(self._presigner.generate_presigned_url("get_object", Params=params, ExpiresIn=expires_s))

    def check(self) -> SelfTest:
        began_at, key = time.monotonic(), keys.probe(uuid4().hex)
        self.put_new_bytes(key, b"probe")
        try:
            if self.get_bytes(key) != b"probe":
                raise _broken("does not give back what was written")
            self._require_conditional_create(key)
            self._require_checksums(key)
            self._require_signatures(key)
        finally:
            self.delete(key)
        return SelfTest(tuple(Proof), time.monotonic() - began_at)

    def _require_conditional_create(self, key: str) -> None:
        try:
            self.put_new_bytes(key, b"other")
        except ObjectExists:
            return
        raise _broken("overwrites despite If-None-Match: *")

    def _require_checksums(self, key: str) -> None:
        try:
            self._put(key, b"other", hashlib.sha256(b"probe").hexdigest(), OCTETS)
        except DigestMismatch:
            return
        raise _broken("accepts bytes that are not what their SHA-256 says")

    def _require_signatures(self, key: str) -> None:
        with _translated(key), closing(URLLib3Session(timeout=(5, 60))) as session:
            status = session.send(self._forged(key)).status_code
        if status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            sin = "answers requests that are signed with a wrong secret"
            fix = "Turn the server's authentication on; keep it off the open network."
            raise StoreMisconfigured(f"The object store {sin}: anybody could read and write.", fix=fix)

    def _forged(self, key: str) -> AWSPreparedRequest:
        """A read of the object, signed with our key and another secret. A second client would cost 0.2 s of work."""
        known = boto3.session.Session().get_credentials().get_frozen_credentials()
        stranger = Credentials(known.access_key, hashlib.sha256(known.secret_key.encode()).hexdigest(), known.token)
        place = {"Bucket": self.bucket, "Key": self._full(key)}
        url = self._client.generate_presigned_url("get_object", Params=place).partition("?")[0]
        request = AWSRequest("GET", url)
        S3SigV4Auth(stranger, "s3", self._client.meta.region_name).add_auth(request)
        return request.prepare()

    def _abort(self, full_key: str, upload_id: str) -> bool:
        """False when it has ended meanwhile."""
        try:
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=full_key, UploadId=upload_id)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise
            return False
        return True

    def _put(self, key: str, body: Any, sha256: str, content_type: str, **conditions: str) -> str:
        with _translated(key):
            self._client.put_object(
                Bucket=self.bucket,
                Key=self._full(key),
                Body=body,
                ContentType=content_type,
                ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
                Metadata={"sha256": sha256},
                **conditions,
            )
        return sha256

    def _pieces(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        window = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        with _translated(key):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self._full(key), **window)
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidRange":
                    raise
                yield b""
                return
            with closing(answer["Body"]) as body:
                yield b""
                yield from body.iter_chunks(CHUNK_BYTES)

    def _full(self, key: str) -> str:
        return self.prefix + check_key(key)


def s3_client(endpoint_url: str | None) -> Any:
    session = boto3.session.Session()
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint_url else "auto"},  # few self-hosted servers have a name per bucket
        retries={"mode": "standard", "total_max_attempts": 4},  # exponential, with jitter
        connect_timeout=5,
        read_timeout=60,
        max_pool_connections=32,
    )
    region = session.region_name or "us-east-1"
    return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        facts = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        raise _error_of(facts.get("Code", ""), facts.get("Message", ""), key, status) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        fix = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role."
        raise StoreMisconfigured("There are no credentials for the object store.", fix=fix) from error
    except FlexibleChecksumError as error:
        raise DigestMismatch(f"{key} arrived damaged from the object store.") from error
    except (BotoCoreError, RetriesExceededError) as error:
        # The error's own text names addresses that clients need not know.
        raise StoreUnavailable(f"The object store did not answer for {key} ({type(error).__name__}).") from error


def _error_of(code: str, message: str, key: str, status: int | None = None) -> StoreError:
    if code in _MISSING:
        return ObjectNotFound(f"There is no object {key}.")
    if code in _TAKEN:
        return ObjectExists(f"There is an object {key} already.")
    if code in _DAMAGED:
        return DigestMismatch(f"The object store received other bytes for {key} than were sent: {message}")
    says_full = code in _FULL or any(text in message.lower() for text in _FULL_TEXTS)
    if says_full or status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreFull(f"The object store has no room for {key}: {code}: {message}")
    if code in _FIXES:
        return StoreMisconfigured(f"The object store refused {key}: {code}: {message}", fix=_FIXES[code])
    return StoreUnavailable(f"The object store failed for {key}: {code}: {message}")


def _broken(what: str) -> StoreMisconfigured:
    fix = "Use a server that keeps conditional writes and checksums: AWS S3, SeaweedFS, a recent MinIO or Ceph."
    return StoreMisconfigured(f"The object store {what}: resumes and uploads could be silently wrong.", fix=fix)
