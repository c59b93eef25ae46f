"""Watched fields in a real run: counted at every step, and no part of the reward."""

from tests.worker.training.runs import Trainers


def test_what_is_watched_is_counted_at_every_step_and_changes_nothing(trainers: Trainers):
    plain = trainers.train("unwatched")
    watched = trainers.train("watched", watch=[{"regex": "a"}, {"json_path": "$.never"}])
    assert watched.exit_code == 0, watched.log
    for step, metrics in watched.steps.items():
        batch = [rollout.completion for rollout in watched.rollouts][8 * (step - 1) : 8 * step]
        assert metrics["watch/a/rows"] == len(batch) == 8
        assert metrics["watch/a/share"] == sum("a" in text for text in batch) / 8
        assert (metrics["watch/never/null_share"], metrics["watch/never/unreadable_share"]) == (1.0, 1.0)
    assert watched.weights == plain.weights
