"""A reproduce bundle, unpacked, checked against its own digests, and read."""

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cli.archive import unpack
from cli.reproduction.errors import BundleUnreadable
from core.bundle import BUNDLE, EVALUATIONS, METRICS, RESULTS, Bundle
from core.results import Evaluation, JobResults
from core.storage.store import digest_of

Metrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Record:
    """What one run was, and what came out."""

    folder: Path
    bundle: Bundle
    results: JobResults | None
    """None for a job that did not succeed, and for a document of another version."""
    metrics: Mapping[int, Metrics]
    """By step."""
    evaluations: Mapping[str, Evaluation]

    @classmethod
    def read(cls, archive: Path, folder: Path) -> "Record":
        """Unpack into `folder`; raises `BundleUnreadable`, `UnsafeArchive`."""
        try:
            unpack(archive, folder)
            bundle = Bundle.model_validate_json((folder / BUNDLE).read_bytes())
            _check_members(folder, bundle)
            metrics, evaluations = dict(_metrics(folder)), dict(_evaluations(folder, bundle))
        except (OSError, tarfile.TarError, ValueError, LookupError) as error:
            raise BundleUnreadable(f"{archive} is not a bundle that this version can read: {error}") from error
        return cls(folder, bundle, _results(folder), metrics, evaluations)

    def path(self, member: str | None) -> Path | None:
        """Of a member whose digest was right."""
        return None if member is None else self.folder / member


def _check_members(folder: Path, bundle: Bundle) -> None:
    """What the bundle names was unpacked from it, and is what it was."""
    named = {member.name: member.sha256 for member in bundle.members}
    data = [one.member for one in (bundle.training, bundle.held_out) if one is not None]
    for used in (*data, *(reward.member for reward in bundle.rewards)):
        if used is not None and used not in named:
            raise BundleUnreadable(f"The bundle of {bundle.job.id} does not name its member {used!r}.")
    for name, digest in named.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or digest_of(path) != digest:
            raise BundleUnreadable(f"{name!r} of the bundle of {bundle.job.id} is not what it was: digests differ.")


def _results(folder: Path) -> JobResults | None:
    try:
        return JobResults.model_validate_json((folder / RESULTS).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _metrics(folder: Path) -> Iterator[tuple[int, Metrics]]:
    with (folder / METRICS).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["step"], row["metrics"]


def _evaluations(folder: Path, bundle: Bundle) -> Iterator[tuple[str, Evaluation]]:
    for member in bundle.members:
        if member.name.startswith(EVALUATIONS):
            name = member.name.removeprefix(EVALUATIONS).removesuffix(".json")
            yield name, Evaluation.model_validate_json((folder / member.name).read_bytes())
