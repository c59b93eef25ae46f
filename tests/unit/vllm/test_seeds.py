"""Each request has its own seed, and a run that goes on asks for what it would have asked for."""

from worker.training.vllm.seeds import RequestSeeds, request_seed

ROWS = [3, 3, 3, 8, 8, 8]


def test_no_two_samples_share_a_seed() -> None:
    seeds = RequestSeeds(7)
    drawn = [seed for step in range(20) for seed in seeds.draw(step, ROWS)]
    assert len(set(drawn)) == len(drawn)


def test_a_run_that_goes_on_at_a_step_draws_what_the_whole_run_drew() -> None:
    whole = RequestSeeds(7)
    drawn = [whole.draw(step, ROWS) for step in range(5)]
    assert [RequestSeeds(7).draw(step, ROWS) for step in range(5)] == drawn


def test_a_row_that_is_asked_for_again_in_the_same_step_goes_on_counting() -> None:
    seeds = RequestSeeds(7)
    first, second = seeds.draw(4, [3, 3]), seeds.draw(4, [3, 3])
    assert [*first, *second] == RequestSeeds(7).draw(4, [3, 3, 3, 3])


def test_a_seed_hangs_on_its_prompt_and_not_on_its_place_in_the_batch() -> None:
    there, back = RequestSeeds(7).draw(0, [3, 8, 8]), RequestSeeds(7).draw(0, [8, 8, 3])
    assert [there[0], *there[1:]] == [back[2], *back[:2]]


def test_seeds_are_the_same_on_every_machine_and_fit_a_generator() -> None:
    assert request_seed(7, 0, 3, 0) == 11_225_115_307_227_225
    assert 0 <= request_seed(2**31 - 1, 10**6, 10**7, 4096) < 2**56


def test_jobs_with_other_seeds_draw_other_samples() -> None:
    assert not set(RequestSeeds(7).draw(0, ROWS)) & set(RequestSeeds(8).draw(0, ROWS))
