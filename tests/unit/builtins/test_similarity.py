import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builtins.grading import grade, rollout, score
from worker.grading.builtins.similarity import MEASURES
from worker.grading.grades import GradeOutcome

CAT = ("the cat sat on the mat", "the cat is on the mat")
FOX = ("The quick brown fox jumps over the lazy dog.", "The fast brown fox jumped over the lazy dog.")
GUIDE = (
    "it is a guide to action which ensures that the military always obeys the commands of the party",
    "it is a guide to action that ensures that the military will forever heed party commands",
)
FIGURES = [
    # sacrebleu 2.6.0: sentence_bleu(tokenize="none", smooth_method="exp", use_effective_order=True), same tokens
    ("bleu", CAT, 0.3799178428),
    ("bleu", FOX, 0.4671379777),
    ("bleu", GUIDE, 0.420859807),
    # nltk 3.10.4: sentence_gleu, same tokens
    ("gleu", CAT, 0.5),
    ("gleu", FOX, 0.5294117647),
    ("gleu", GUIDE, 0.4545454545),
    # rouge-score 0.1.2, without stemming; it counts no punctuation marks, so only sentences that have none
    ("rouge_1", CAT, 0.8333333333),
    ("rouge_2", CAT, 0.6),
    ("rouge_3", CAT, 0.25),
    ("rouge_l", CAT, 0.8333333333),
    ("rouge_1", GUIDE, 0.7058823529),
    ("rouge_2", GUIDE, 0.5),
    ("rouge_3", GUIDE, 0.4),
    ("rouge_l", GUIDE, 0.6470588235),
]


@pytest.mark.parametrize(("metric", "texts", "wanted"), FIGURES)
def test_measures_agree_with_the_reference_libraries(metric: str, texts: tuple[str, str], wanted: float) -> None:
    completion, summary = texts
    assert score("text_similarity", rollout(completion, s=summary), column="s", metric=metric) == pytest.approx(wanted)


@given(st.text(), st.text(), st.sampled_from(sorted(MEASURES)))
def test_every_measure_stays_between_zero_and_one(text: str, wanted: str, metric: str) -> None:
    assert 0.0 <= MEASURES[metric](text, wanted) <= 1.0


@pytest.mark.parametrize("metric", sorted(set(MEASURES) - {"rouge_2", "rouge_3", "rouge_4", "rouge_5"}))
def test_equal_texts_are_entirely_alike_and_strangers_not_at_all(metric: str) -> None:
    assert MEASURES[metric]("one", "one") == 1.0
    assert MEASURES[metric]("abc", "xyz") == 0.0


@pytest.mark.parametrize(
    ("operation", "completion", "wanted"),
    [
        ("eq", "Paris", 1.0),
        ("eq", "paris", 0.0),
        ("ne", "paris", 1.0),
        ("like", "to Paris!", 1.0),
        ("like", "to paris!", 0.0),
        ("ilike", "to PARIS!", 1.0),
        ("ilike", "to Rome", 0.0),
    ],
)
def test_string_check(operation: str, completion: str, wanted: float) -> None:
    one = rollout(completion, answer="Paris")
    assert score("string_check", one, reference="{{item.answer}}", operation=operation) == wanted


def test_templates_read_into_the_completions_json_and_the_row() -> None:
    one = rollout('{"place": {"city": "Paris"}}', answers=[{"city": "Paris"}])
    parameters = {"input": "in {{ sample.output_json.place.city }}", "operation": "eq"}
    assert score("string_check", one, reference="in {{ item.answers[0].city }}", **parameters) == 1.0


@pytest.mark.parametrize("completion", ["not JSON", '{"city": null}', "{}", "[1]"])
def test_a_completion_without_the_value_scores_zero(completion: str) -> None:
    one = rollout(completion, answer="Paris")
    parameters = {"input": "{{sample.output_json.city}}", "reference": "{{item.answer}}", "operation": "ne"}
    assert score("string_check", one, **parameters) == 0.0


def test_a_null_reference_has_no_answer_and_a_missing_one_is_the_datas_fault() -> None:
    parameters = {"reference": "{{item.answer}}", "operation": "eq"}
    assert score("string_check", rollout("x", answer=None), **parameters) is None
    result = grade("string_check", rollout("x"), **parameters)
    assert (result.outcome, result.message) == (GradeOutcome.USER_ERROR, "the row has no item.answer")


@pytest.mark.parametrize("operation", ["like", "ilike"])
def test_an_empty_reference_to_contain_is_the_datas_fault(operation: str) -> None:
    checked = grade("string_check", rollout("x", answer=""), reference="{{item.answer}}", operation=operation)
    assert checked.outcome is GradeOutcome.USER_ERROR
