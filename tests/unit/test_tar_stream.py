"""The virtual archive is, byte for byte and at every offset, the one that `tarfile` would have written."""

import hashlib
import io
import tarfile
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from app.artifacts.tar_stream import MODIFIED_AT, Member, OpenRange, VirtualTar

names = st.one_of(
    st.from_regex(r"[a-z]{1,12}(/[a-z_.]{1,20}[a-z]){0,2}", fullmatch=True),
    st.sampled_from(["x" * 101, "y" * 90 + "/" + "z" * 60, "w" * 300, "gewürz/日本.json"]),
)
contents = st.dictionaries(names, st.binary(max_size=1500), max_size=5)


def opener(data: bytes) -> OpenRange:
    def open_range(start: int, end: int) -> Iterator[bytes]:
        assert 0 <= start < end <= len(data)
        for at in range(start, end, 7):
            yield data[at : min(at + 7, end)]

    return open_range


def member(name: str, data: bytes) -> Member:
    return Member(name, len(data), hashlib.sha256(data).hexdigest(), opener(data))


def virtual(files: dict[str, bytes]) -> VirtualTar:
    return VirtualTar([member(name, data) for name, data in files.items()])


def written_by_tarfile(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), MODIFIED_AT
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@given(contents)
def test_the_whole_archive_is_what_tarfile_writes(files: dict[str, bytes]) -> None:
    archive = virtual(files)
    real = written_by_tarfile(files)
    assert archive.size_bytes == len(real)
    assert b"".join(archive.read()) == real


@given(contents, st.data())
def test_any_range_is_the_slice_of_the_real_archive(files: dict[str, bytes], data: st.DataObject) -> None:
    archive = virtual(files)
    real = written_by_tarfile(files)
    start = data.draw(st.integers(0, len(real) + 600))
    end = data.draw(st.integers(start, len(real) + 1200))
    assert b"".join(archive.read(start, end)) == real[start:end]


def test_a_range_opens_only_the_members_that_it_touches() -> None:
    opened: list[str] = []

    def watched(name: str, data: bytes) -> Member:
        def open_range(start: int, end: int) -> Iterator[bytes]:
            opened.append(name)
            yield data[start:end]

        return Member(name, len(data), "", open_range)

    archive = VirtualTar([watched(name, b"x" * 512) for name in ("a", "b", "c")])
    assert b"".join(archive.read(1536, 2048)) == b"x" * 512
    assert opened == ["b"]


def test_identity_follows_names_and_digests() -> None:
    first = virtual({"a": b"1", "b": b"2"})
    assert first.sha256 == virtual({"a": b"1", "b": b"2"}).sha256
    assert first.sha256 != virtual({"a": b"1", "b": b"3"}).sha256
    assert first.sha256 != virtual({"a": b"1", "c": b"2"}).sha256


def test_members_can_be_extracted() -> None:
    files = {"adapter/adapter_config.json": b"{}", "adapter/adapter_model.safetensors": bytes(range(256)) * 40}
    stream = io.BytesIO(b"".join(virtual(files).read()))
    with tarfile.open(fileobj=stream) as archive:
        assert {info.name: archive.extractfile(info).read() for info in archive} == files
