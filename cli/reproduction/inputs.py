"""What a rerun is fed with: out of the bundle, and from files that the bundle leaves out or that replace its own."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cli.reproduction.errors import InputMissing, RewardUnknown
from cli.reproduction.record import Record
from core.builtin_rewards.outside import Credentials
from core.bundle import BundledData
from core.storage.store import digest_of


@dataclass(frozen=True, slots=True)
class Inputs:
    training: Path
    held_out: Path | None
    sources: Mapping[str, Path]
    """Of the rewards that have one, by name."""
    credentials: Mapping[str, Credentials]
    """Of the `http` rewards that need some, by name."""
    replaced: tuple[str, ...]
    """Names of the rewards that are not those of the bundle."""


def find_inputs(record: Record, files: Sequence[Path], rewards: Sequence[str]) -> Inputs:
    """`files` are known by their digests; `rewards` are `NAME=FILE`. Raises `InputMissing`, `RewardUnknown`."""
    bundle = record.bundle
    given = _given(record, rewards)
    by_digest = {digest_of(path): path for path in files}
    credentials = dict(_credentials(record, given))
    sources = dict(_sources(record, given))
    return Inputs(
        training=_data(record, bundle.training, by_digest),
        held_out=None if bundle.held_out is None else _data(record, bundle.held_out, by_digest),
        sources=sources,
        credentials=credentials,
        replaced=tuple(_replaced(record, sources, credentials)),
    )


def _given(record: Record, rewards: Sequence[str]) -> dict[str, Path]:
    names = [reward.name for reward in record.bundle.rewards if reward.member or reward.credentials_sha256]
    given = {}
    for text in rewards:
        name, _, path = text.partition("=")
        if name not in names or not Path(path).is_file():
            takers = ", ".join(names) or "none"
            raise RewardUnknown(f"{text!r} does not give a reward a file; rewards of the job that take one: {takers}.")
        given[name] = Path(path)
    return given


def _data(record: Record, data: BundledData, by_digest: Mapping[str, Path]) -> Path:
    path = record.path(data.member) or by_digest.get(data.sha256)
    if path is None:
        message = f"The bundle holds no {data.filename} ({data.rows} rows, SHA-256 {data.sha256})."
        raise InputMissing(message, fix="Give the file with --file; it is known by its digest.")
    return path


def _sources(record: Record, given: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for reward in record.bundle.rewards:
        path = given.get(reward.name) or record.path(reward.member)
        if reward.form == "builtin":
            continue
        if path is None:
            raise InputMissing(f"The bundle holds no source of the reward {reward.name!r}.")
        yield reward.name, path


def _credentials(record: Record, given: Mapping[str, Path]) -> Iterator[tuple[str, Credentials]]:
    for reward in record.bundle.rewards:
        if reward.credentials_sha256 is None:
            continue
        fix = f'Give them with --reward {reward.name}=FILE, as JSON: {{"secret": ..., "headers": {{...}}}}.'
        if reward.name not in given:
            raise InputMissing(f"The reward {reward.name!r} needs credentials, which no bundle holds.", fix=fix)
        try:
            yield reward.name, Credentials.model_validate_json(given[reward.name].read_bytes())
        except ValidationError:
            raise InputMissing(f"{given[reward.name]} does not hold credentials.", fix=fix) from None


def _replaced(record: Record, sources: Mapping[str, Path], credentials: Mapping[str, Credentials]) -> Iterator[str]:
    for reward in record.bundle.rewards:
        if reward.name in sources and digest_of(sources[reward.name]) != reward.source_sha256:
            yield reward.name
        if reward.name in credentials and _digest(credentials[reward.name]) != reward.credentials_sha256:
            yield reward.name


def _digest(credentials: Credentials) -> str:
    """As a job keeps them (`app.jobs.resolve`)."""
    return hashlib.sha256(credentials.model_dump_json().encode()).hexdigest()
