"""What was different around two runs of one job: the likely reason why their figures are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from core.bundle import Bundle
from core.results import Environment

IDS = frozenset({"file_id", "filename", "reward_id", "version_id"})
"""Parts of a spec that name things on one server, and decide nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    what: str
    recorded: str
    rerun: str


def differences(recorded: Bundle, rerun: Bundle) -> list[Difference]:
    """What was to be computed first, then with which versions and on what, where both bundles say it."""
    found = [*_between(_asked(recorded), _asked(rerun))]
    if recorded.environment is not None and rerun.environment is not None:
        found += _between(_environment(recorded.environment), _environment(rerun.environment))
    return found


def _between(recorded: Mapping[str, str], rerun: Mapping[str, str]) -> Iterator[Difference]:
    for name in dict.fromkeys([*recorded, *rerun]):
        first, second = recorded.get(name, "-"), rerun.get(name, "-")
        if first != second:
            yield Difference(name, first, second)


def _asked(bundle: Bundle) -> dict[str, str]:
    return {**dict(_leaves("", bundle.spec.model_dump(mode="json"))), "podium": bundle.podium}


def _environment(environment: Environment) -> dict[str, str]:
    facts = environment.model_dump()
    libraries = facts.pop("libraries")
    return {name: str(value) for name, value in {**facts, **libraries}.items()}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Of a spec, but for its ids; the credentials' digests are among them."""
    match value:
        case dict():
            for key, item in value.items():
                if key not in IDS:
                    yield from _leaves(f"{path}.{key}" if path else key, item)
        case list():
            for index, item in enumerate(value):
                yield from _leaves(f"{path}[{index}]", item)
        case _:
            yield path, str(value)
