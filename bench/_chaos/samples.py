"""What a trainer that only plays one reports: a rollout, an answer, a summary, whole and of no meaning."""

from core.results import Answer, Environment, PhaseSeconds
from worker.run_directory import Rollout, RolloutGrade, Summary


def make_answer(*, passed: bool = True) -> Answer:
    return Answer(completion="4", reward=float(passed), passed=passed, completion_tokens=1, finish_reason="stop")


def make_rollout(completion: str) -> Rollout:
    return Rollout(
        index=0,
        row=1,
        prompt="2+2",
        completion=completion,
        grades={"exact": RolloutGrade(outcome="scored", value=1.0)},
        reward=1.0,
        advantage=0.0,
        completion_tokens=3,
        finish_reason="stop",
    )


def make_summary(step: int, *, held_out_rows: int = 20) -> Summary:
    libraries = {"torch": "2.13.0"}
    return Summary(
        final_step=step,
        best_evaluation="final",
        phases=PhaseSeconds(generation=1.0, total=1.0),
        environment=Environment(
            python="3.11.0", platform="Linux", device="cpu", driver=None, dtype="float32", libraries=libraries
        ),
        trained_tokens=1000,
        generated_tokens=400,
        train_rows=1,
        held_out_rows=held_out_rows,
        overlap_rows=0,
        silent_share=0.25,
        steps_without_gradient=1,
        truncated_share=0.0,
        ungraded_rollouts=0,
        resolved_parameters={"per_device_train_batch_size": 4},
    )
