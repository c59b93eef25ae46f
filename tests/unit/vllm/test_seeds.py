"""Each request has its own seed, and a run that goes on asks for what it would have asked for."""

from worker.training.vllm.seeds import RequestSeeds

ONE, OTHER = [3, 1, 4], [3, 1, 5]
PROMPTS = [ONE, ONE, ONE, OTHER, OTHER, OTHER]


def test_no_two_samples_share_a_seed() -> None:
    seeds = RequestSeeds(7)
    drawn = [seed for step in range(20) for seed in seeds.draw(step, PROMPTS)]
    assert len(set(drawn)) == len(drawn)


def test_a_run_that_goes_on_at_a_step_draws_what_the_whole_run_drew() -> None:
    whole = RequestSeeds(7)
    drawn = [whole.draw(step, PROMPTS) for step in range(5)]
    assert [RequestSeeds(7).draw(step, PROMPTS) for step in range(5)] == drawn


def test_a_prompt_that_is_asked_for_again_in_the_same_step_goes_on_counting() -> None:
    seeds = RequestSeeds(7)
    first, second = seeds.draw(4, [ONE, ONE]), seeds.draw(4, [ONE, ONE])
    assert [*first, *second] == RequestSeeds(7).draw(4, [ONE, ONE, ONE, ONE])


def test_a_seed_hangs_on_its_prompt_and_not_on_its_place_in_the_batch() -> None:
    there, back = RequestSeeds(7).draw(0, [ONE, OTHER, OTHER]), RequestSeeds(7).draw(0, [OTHER, OTHER, ONE])
    assert there == [back[2], *back[:2]]


def test_seeds_are_the_same_on_every_machine_and_fit_a_generator() -> None:
    assert RequestSeeds(7).draw(0, [ONE]) == [67_336_437_837_053_793]
    assert all(0 <= seed < 2**56 for seed in RequestSeeds(2**31 - 1).draw(10**6, PROMPTS))


def test_jobs_with_other_seeds_draw_other_samples() -> None:
    assert not set(RequestSeeds(7).draw(0, PROMPTS)) & set(RequestSeeds(8).draw(0, PROMPTS))
