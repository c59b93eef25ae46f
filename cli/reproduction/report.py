"""What a reader is told of a rerun: a count for each group, each figure that is not equal, and the likely reason."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cli.reproduction.differences import Absent, Figure, Judgement, Value
from cli.reproduction.surroundings import Difference
from core.spec import JobSpec

Row = tuple[str, ...]
CELL_CHARS = 36


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two runs of one job."""

    figures: Sequence[Figure]
    surroundings: Sequence[Difference]
    replaced: Sequence[str]
    """Rewards that were given another source or other credentials on purpose."""
    spec: JobSpec
    device: str | None

    @property
    def agrees(self) -> bool:
        return all(figure.judgement is not Judgement.DIFFERS for figure in self.figures)

    def of(self, judgement: Judgement) -> list[Figure]:
        return [figure for figure in self.figures if figure.judgement is judgement]


def group_rows(comparison: Comparison) -> Iterator[Row]:
    """The first is the heading."""
    yield "figures", "compared", *Judgement
    for group, of_group in groupby(comparison.figures, key=lambda figure: figure.group):
        judgements = [figure.judgement for figure in of_group]
        yield group, str(len(judgements)), *(str(judgements.count(judgement)) for judgement in Judgement)


def figure_rows(comparison: Comparison) -> Iterator[Row]:
    """Of the figures that are not equal; nothing, not even a heading, where all are."""
    unequal = [*comparison.of(Judgement.DIFFERS), *comparison.of(Judgement.ACCEPTED)]
    if unequal:
        yield "figure", "is", "first at", "recorded", "rerun", "at", "largest difference"
    for figure in unequal:
        assert figure.first is not None, "it is not equal"
        yield (
            f"{figure.group}: {figure.name}",
            figure.judgement,
            figure.first.place,
            _cell(figure.first.recorded),
            _cell(figure.first.rerun),
            f"{figure.differing}/{figure.places}",
            "" if figure.largest is None else f"{figure.largest:.2g}",
        )


def reason_rows(comparison: Comparison) -> Iterator[Row]:
    """What differs around the runs; nothing where nothing does."""
    if comparison.surroundings:
        yield "around the runs", "recorded", "rerun"
    for one in comparison.surroundings:
        yield one.what, _cell(one.recorded), _cell(one.rerun)


def sentences(comparison: Comparison) -> Iterator[str]:
    """The outcome, and what may explain it."""
    figures, differing = comparison.figures, comparison.of(Judgement.DIFFERS)
    accepted = comparison.of(Judgement.ACCEPTED)
    if not differing and not accepted:
        yield f"All {len(figures)} figures are equal, to the last bit."
        return
    if differing:
        yield f"{len(differing)} of {len(figures)} figures differ."
    if accepted:
        yield f"{len(accepted)} of {len(figures)} figures differ within the tolerance."
    yield _reason(comparison)


def _reason(comparison: Comparison) -> str:
    if comparison.replaced:
        return f"Replaced on purpose: {', '.join(comparison.replaced)}."
    if comparison.surroundings:
        return f"Likely because of: {', '.join(one.what for one in comparison.surroundings)}."
    if comparison.spec.hyperparameters.use_vllm:
        return "Nothing around the runs differs; vLLM schedules requests as they come, so equal bits are not promised."
    if comparison.device not in (None, "cpu"):
        return "Nothing around the runs differs; a GPU may sum in another order each time."
    return (
        "Nothing around the runs differs that bundles know of: another kind of CPU, or a reward that does not answer "
        "the same each time, would explain it."
    )


def _cell(value: Value) -> str:
    match value:
        case Absent():
            return "(absent)"
        case None:
            return "null"
        case float():
            return repr(value)
        case _:
            text = "".join(character if character.isprintable() else " " for character in str(value))
            return f"{text[: CELL_CHARS - 3]}..." if len(text) > CELL_CHARS else text
