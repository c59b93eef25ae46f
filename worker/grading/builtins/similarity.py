"""How alike two texts are, and OpenAI's string check. N-gram measures are taken over words and punctuation marks.

The definitions are the papers': BLEU (Papineni 2002, with sacrebleu's exponential smoothing and effective order for
single sentences), GLEU (Wu 2016, section 4.3, up to 4), ROUGE-N and ROUGE-L (Lin 2004, F1). rouge-score, the package,
has been left alone since 2022; nltk and sacrebleu are large for a page of counting. Tests hold their figures.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

from core.builtin_rewards.comparison import StringCheck, TextSimilarity
from core.templates import NothingThereError, Template
from worker.grading.builtins.outcomes import NO_ANSWER, Score, Scorer, UnfitDataError, passed
from worker.grading.grades import Rollout

_TOKEN = re.compile(r"\w+|[^\w\s]")
_LONGEST_NGRAM = 4


def string_check(parameters: StringCheck) -> Scorer:
    operations: dict[str, Callable[[str, str], bool]] = {
        "eq": lambda text, wanted: text == wanted,
        "ne": lambda text, wanted: text != wanted,
        "like": lambda text, wanted: wanted in text,
        "ilike": lambda text, wanted: wanted.casefold() in text.casefold(),
    }
    check = operations[parameters.operation]

    def compare(text: str, wanted: str) -> Score:
        if parameters.operation in {"like", "ilike"} and not wanted.strip():
            raise UnfitDataError("the reference is empty, and everything contains that")
        return passed(check(text, wanted))

    return _comparison(parameters.templates, compare)


def text_similarity(parameters: TextSimilarity) -> Scorer:
    measure = MEASURES[parameters.metric]
    return _comparison(parameters.templates, lambda text, wanted: Score(measure(text, wanted)))


def fuzzy_match(text: str, wanted: str) -> float:
    return fuzz.ratio(text, wanted) / 100.0


def bleu(text: str, wanted: str) -> float:
    one, other = _tokens(text), _tokens(wanted)
    logs, smoothing = [], 1.0
    for size in range(1, min(_LONGEST_NGRAM, len(one)) + 1):
        matches, total = _overlap(one, other, size), len(one) - size + 1
        if size == 1 and not matches:
            return 0.0
        if not matches:
            smoothing *= 2
        logs.append(math.log(matches / total if matches else 1 / (smoothing * total)))
    if not logs:
        return 0.0
    brevity = min(0.0, 1 - len(other) / len(one))
    return math.exp(brevity + math.fsum(logs) / len(logs))


def gleu(text: str, wanted: str) -> float:
    one, other = _tokens(text), _tokens(wanted)
    sizes = range(1, _LONGEST_NGRAM + 1)
    matches = sum(_overlap(one, other, size) for size in sizes)
    most = max(sum(max(0, len(tokens) - size + 1) for size in sizes) for tokens in (one, other))
    return matches / most if most else 0.0


def rouge_n(text: str, wanted: str, *, size: int) -> float:
    one, other = _tokens(text.lower()), _tokens(wanted.lower())
    return _f1(_overlap(one, other, size), len(one) - size + 1, len(other) - size + 1)


def rouge_l(text: str, wanted: str) -> float:
    one, other = _tokens(text.lower()), _tokens(wanted.lower())
    return _f1(LCSseq.similarity(one, other), len(one), len(other))


MEASURES: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    **{f"rouge_{size}": partial(rouge_n, size=size) for size in range(1, 6)},
    "rouge_l": rouge_l,
}


def _comparison(templates: tuple[Template, Template], compare: Callable[[str, str], Score]) -> Scorer:
    """Of what the templates make: no answer where the row has null there, 0 where the completion lacks the value."""

    def score(rollout: Rollout) -> Score:
        try:
            text, wanted = (template.render(rollout.completion, rollout.columns) for template in templates)
        except NothingThereError as error:
            if error.variable.namespace == "sample":
                return passed(False)
            if error.is_null:
                return NO_ANSWER
            raise UnfitDataError(f"the row has no {error.variable}") from None
        return compare(text, wanted)

    return score


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _overlap(one: Sequence[str], other: Sequence[str], size: int) -> int:
    """How many n-grams they share, each as often as both have it."""
    return (_ngrams(one, size) & _ngrams(other, size)).total()


def _ngrams(tokens: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[place : place + size]) for place in range(len(tokens) - size + 1))


def _f1(matches: int, one: int, other: int) -> float:
    return 2 * matches / (one + other) if matches else 0.0
