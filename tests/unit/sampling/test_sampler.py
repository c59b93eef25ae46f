"""Which prompts a step gets, with a policy of which it is known beforehand which prompts it disagrees on."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from core.rows import Row
from core.spec import DynamicSampling, Hyperparameters, PromptSampling
from tests.factories import make_spec
from worker.grading.grades import Grade, GradeOutcome
from worker.training.rewards import Completion, Scored
from worker.training.rollouts import RolloutBatch
from worker.training.sampling.drawn import StepDraw
from worker.training.sampling.histories import PromptHistories
from worker.training.sampling.sampler import StepSampler, step_sampler

GROUP, STEP, ROWS = 4, 3, 20
LIVELY = set(range(0, ROWS, 4))
"""Places of the rows whose groups are mixed; the others are silent."""
DYNAMIC, ADAPTIVE = DynamicSampling(max_extra_batches=2), PromptSampling(floor=0.1)


def sampler_of(histories: PromptHistories | None = None, *, rows: int = ROWS, **options: Any) -> StepSampler:
    numbers = Hyperparameters(num_generations=GROUP, prompts_per_step=STEP, max_steps=9, learning_rate=1.0, **options)
    lines = [Row(line=place + 1, prompt=f"prompt {place}", columns={}) for place in range(rows)]
    examples = [{"prompt": row.prompt, "row": place} for place, row in enumerate(lines)]
    found = step_sampler(make_spec(hyperparameters=numbers), examples, lines, histories or PromptHistories())
    assert found is not None
    return found


def take_step(sampler: StepSampler, step: int, places: list[int] | None = None) -> StepDraw:
    """`places`: what the data's order has for the step."""
    chosen = [(STEP * step + number) % len(sampler.rows) for number in range(STEP)] if places is None else places
    inputs = [sampler.examples[place] for place in chosen for _ in range(GROUP)]
    return sampler.draw(inputs, step=step, generate=generate, grade=grade)


def generate(inputs: list[dict[str, Any]]) -> tuple[Any, ...]:
    prompts = [example["prompt"] for example in inputs]
    return [[1]] * len(prompts), [[2, 3]] * len(prompts), None, prompts, None, {}, None, []


def grade(inputs: list[dict[str, Any]], completion_ids: list[list[int]]) -> RolloutBatch:
    """All wrong, but that one rollout of each group of a lively prompt is right; row 13 cannot be graded."""
    values = [float(number % GROUP == 1 and one["row"] in LIVELY) for number, one in enumerate(inputs)]
    grades = [Grade(GradeOutcome.SCORED, value) for value in values]
    scored = [
        Scored({"a": grade}, None if one["row"] == 13 else grade.value)
        for one, grade in zip(inputs, grades, strict=True)
    ]
    row = Row(line=1, prompt="", columns={})
    answers = [Completion(row, one["prompt"], ids, False) for one, ids in zip(inputs, completion_ids, strict=True)]
    return RolloutBatch(answers, scored, GROUP)


def draws(sampler: StepSampler, steps: int) -> Iterator[StepDraw]:
    return (take_step(sampler, step) for step in range(steps))


def test_asked_for_neither_there_is_no_sampler() -> None:
    assert step_sampler(make_spec(), [], [], PromptHistories()) is None


def test_silent_groups_are_replaced_from_prompts_that_the_step_has_not_had() -> None:
    for draw in draws(sampler_of(dynamic_sampling=DYNAMIC), 30):
        rows, trained = draw.everything.rows, draw.trained.rows
        assert len(rows) == len(set(rows)) == draw.metrics["draw/groups_generated"] <= STEP * 3
        assert len(trained) == STEP
        assert LIVELY & set(rows) <= set(trained)
        replaced = draw.metrics["draw/groups_replaced"]
        silent = [row not in LIVELY for row in trained if row != 13]
        assert draw.metrics["draw/trained_silent_share"] == pytest.approx(sum(silent) / len(silent))
        assert replaced == len(set(trained) - set(rows[:STEP])) == len(LIVELY & set(rows[STEP:]))


def test_what_disagrees_at_once_is_left_alone() -> None:
    draw = take_step(sampler_of(dynamic_sampling=DYNAMIC), 0, [0, 4, 8])
    assert (draw.everything.rows, draw.metrics["draw/extra_batches"]) == ([0, 4, 8], 0)


def test_a_group_that_cannot_be_graded_is_not_replaced() -> None:
    draw = take_step(sampler_of(dynamic_sampling=DYNAMIC), 0, [0, 13, 4])
    assert draw.trained.rows == [0, 13, 4]
    assert draw.metrics["draw/trained_silent_share"] == 0


def test_it_ends_where_no_further_prompt_is_left() -> None:
    draw = take_step(sampler_of(dynamic_sampling=DynamicSampling(max_extra_batches=9), rows=5), 0, [1, 2, 3])
    assert sorted(draw.everything.rows) == [0, 1, 2, 3, 4]
    assert sorted(draw.trained.rows) == [0, 3, 4]


def test_rollouts_stay_with_their_prompt() -> None:
    for draw in draws(sampler_of(dynamic_sampling=DYNAMIC), 10):
        for part in (draw.everything, draw.trained):
            texts = [completion.text for completion in part.batch.completions]
            prompts = [f"prompt {row}" for row in part.rows for _ in range(GROUP)]
            assert texts == prompts == part.generation.completions == [one["prompt"] for one in part.inputs]


def test_advantages_go_to_the_rollouts_they_are_of_and_none_to_those_left_out() -> None:
    for draw in draws(sampler_of(dynamic_sampling=DYNAMIC), 10):
        advantages = draw.advantages([float(row) for row in draw.trained.rows for _ in range(GROUP)])
        kept = set(draw.trained.rows)
        rows = [row for row in draw.everything.rows for _ in range(GROUP)]
        assert advantages == [float(row) if row in kept else None for row in rows]


def test_prompts_that_disagree_come_more_often_and_no_other_is_starved() -> None:
    sampler = sampler_of(prompt_sampling=ADAPTIVE)
    counts = Counter(row for draw in draws(sampler, 200) for row in draw.everything.rows)
    lively = sum(counts[row] for row in LIVELY) / sum(counts.values())
    assert lively > 0.45, "a quarter of the prompts"
    assert set(counts) == set(range(ROWS))
    assert min(counts.values()) >= 5


def test_histories_are_what_was_generated() -> None:
    sampler = sampler_of(prompt_sampling=ADAPTIVE, dynamic_sampling=DYNAMIC)
    counts = Counter(row for draw in draws(sampler, 20) for row in draw.everything.rows)
    found = {line: (one.groups, one.mixed) for line, one in sampler.histories.prompts.items()}
    assert found == {row + 1: (n, n * (row in LIVELY)) for row, n in counts.items() if row != 13}


@pytest.mark.parametrize("step", [0, 1, 7])
def test_from_saved_histories_it_goes_on_as_it_would_have(step: int) -> None:
    options: dict[str, Any] = {"prompt_sampling": ADAPTIVE, "dynamic_sampling": DYNAMIC}
    whole = sampler_of(**options)
    list(draws(whole, step))
    saved = whole.histories.model_dump_json()
    resumed = sampler_of(PromptHistories.model_validate_json(saved), **options)
    for later in range(step, step + 5):
        assert take_step(resumed, later).everything.rows == take_step(whole, later).everything.rows


def test_what_it_expects_is_told_before_it_is_known() -> None:
    sampler = sampler_of(prompt_sampling=ADAPTIVE)
    first, *_, last = draws(sampler, 60)
    assert first.metrics["draw/expected_signal"] == pytest.approx(0.6)
    assert first.metrics["draw/expected_signal_uniform"] == pytest.approx(0.6)
    assert (first.metrics["draw/prompts_seen"], last.metrics["draw/prompts_seen"]) == (0, ROWS - 1)
    assert last.metrics["draw/expected_signal_uniform"] < 0.6


def test_with_no_more_prompts_than_a_step_takes_there_is_nothing_to_choose() -> None:
    draw = take_step(sampler_of(prompt_sampling=ADAPTIVE, rows=3), 0, [2, 0, 1])
    assert draw.everything.rows == [2, 0, 1]
