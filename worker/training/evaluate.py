"""Every held-out task answered by the policy as it stands, and graded by the rewards that it is trained on.

Baseline, every-N-steps and final evaluations are this one function over the same tasks in the same batches with the
same seeds, so that two of them differ by the policy alone. It leaves training untouched: no random number of the
training stream is drawn, and the model's mode is put back.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from core.failpoints import failpoint
from core.results import Answer, Evaluation, TaskResult
from core.rows import canonical_prompt_sha256
from core.spec import JobSpec
from worker.training.data import Task
from worker.training.environment import Device
from worker.training.rewards import Completion, Rewards, Scored, require_rewards
from worker.training.seeds import seed_of
from worker.training.stop import StopRequest
from worker.training.team.team import ALONE, Team

MOST_ANSWERS = 64
MOST_TOKENS = 131_072
"""Of prompts and answers in one batch: about 15 GB of key-value cache for an 8B model of the Qwen3 kind."""


MOST_ERROR = 500
"""Characters of what a grader said that an answer keeps."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How answers are taken from the policy: greedily, or sampled at a temperature with a seed."""

    max_tokens: int
    temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0

    def generation_config(self, *, eos_token_ids: Sequence[int], pad_token_id: int) -> GenerationConfig:
        """Every knob spelled out: what is unset would come from the model's own file (Qwen's samples at 0.6).

        Greedy search reads none of the sampling knobs; at these values transformers does not warn of them.
        """
        sampling: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
        if self.temperature is not None:
            sampling = {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        return GenerationConfig(
            **sampling,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=self.max_tokens,
            eos_token_id=list(eos_token_ids),
            pad_token_id=pad_token_id,
            use_cache=True,
            disable_compile=True,
        )


@dataclass(frozen=True, slots=True)
class Round:
    """What the processes of a run do together: batches `first`, `first` + 1, ... of the tasks, each of them one."""

    decoding: Decoding
    first: int


@dataclass
class Evaluator:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Sequence[int]
    tasks: Sequence[Task]
    rewards: Rewards
    spec: JobSpec
    device: Device
    stop: StopRequest
    on_batch: Callable[[], None] = lambda: None
    team: Team = ALONE
    last_error: str | None = None
    """What a reward said when it last failed on an answer."""

    def evaluate(self, step: int) -> Evaluation:
        """The policy after `step` optimizer steps.

        Raises `Stopped` between batches when told to stop, and as `require_rewards` when no answer can be graded.
        """
        started = time.monotonic()
        with untouched_training(self.model, self.device):
            greedy = self._answer_all(self._greedy, step)
            sampled = [self._answer_all(decoding, step) for decoding in self._sampled]
        results = tuple(
            TaskResult(
                task=task.row.line,
                prompt_sha256=canonical_prompt_sha256(task.row),
                greedy=greedy[place],
                sampled=tuple(answers[place] for answers in sampled),
            )
            for place, task in enumerate(self.tasks)
        )
        seconds = time.monotonic() - started
        return Evaluation(step=step, pass_threshold=self.spec.pass_threshold, tasks=results, seconds=seconds)

    @property
    def tokens_at_once(self) -> int:
        """Of prompts and answers, at most: what the key-value cache of a batch must hold."""
        first = self._batches[0]
        longest = len(self.tasks[first[0]].prompt_ids) + self.spec.hyperparameters.max_completion_length
        return len(first) * longest

    @cached_property
    def _greedy(self) -> Decoding:
        return Decoding(self.spec.hyperparameters.max_completion_length)

    @cached_property
    def _sampled(self) -> list[Decoding]:
        wanted, training = self.spec.evaluation, self.spec.hyperparameters
        temperature = wanted.temperature or training.temperature
        return [
            Decoding(training.max_completion_length, temperature, training.top_p, seed_of(self.spec.seed, sample))
            for sample in range(wanted.samples_per_task)
        ]

    @cached_property
    def _batches(self) -> list[list[int]]:
        """Places of tasks, longest prompts first: little padding, and memory runs out at once or never.

        The layout decides which random numbers an answer is sampled with; tasks and spec alone decide the layout.
        """
        order = sorted(range(len(self.tasks)), key=lambda place: -len(self.tasks[place].prompt_ids))
        longest = len(self.tasks[order[0]].prompt_ids) + self.spec.hyperparameters.max_completion_length
        size = max(1, min(MOST_ANSWERS, MOST_TOKENS // longest))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def grade_all(self, decoding: Decoding, step: int) -> list[tuple[Completion, Scored]]:
        """One graded completion per task, in the order of the tasks. Raises `Stopped` between batches."""
        graded: dict[int, tuple[Completion, Scored]] = {}
        for first in range(0, len(self._batches), self.team.size):
            answered = self.answer(self.team.share(Round(decoding, first)))
            for places, answers in zip(self._batches[first:], answered, strict=False):
                completions = self._completions([self.tasks[place] for place in places], answers)
                scores = self.rewards.score(completions, step=step)
                graded |= zip(places, zip(completions, scores, strict=True), strict=True)
                failpoint("evaluation.batch_done")
                self.on_batch()
            self.stop.check()
        return [graded[place] for place in range(len(self.tasks))]

    def answer(self, order: Round) -> list[list[list[int]]]:
        """This process's batch of `order`: for the leader the token ids of all, by batch and task. Seeds belong to
        batches, so an answer is the same whoever gives it.
        """
        number = order.first + self.team.rank
        ours: list[list[int]] = []
        if number < len(self._batches):
            torch.manual_seed(seed_of(order.decoding.seed, number))
            ours = self._generate([self.tasks[place].prompt_ids for place in self._batches[number]], order.decoding)
        return self.team.gather(ours)

    def _answer_all(self, decoding: Decoding, step: int) -> list[Answer]:
        """One answer per task, in the order of the tasks."""
        graded = self.grade_all(decoding, step)
        scored = [score for _, score in graded]
        require_rewards(scored, step=step)
        self.last_error = next((score.error for score in scored if score.error), self.last_error)
        return [self._answer(*one) for one in graded]

    def _generate(self, prompts: Sequence[Sequence[int]], decoding: Decoding) -> list[list[int]]:
        pad = self.tokenizer.pad_token_id
        ids, mask = _left_padded(prompts, pad, self.model.device)
        config = decoding.generation_config(eos_token_ids=self.eos_token_ids, pad_token_id=pad)
        with self.device.autocast():
            output = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return [self._until_eos(row) for row in output[:, ids.shape[1] :].tolist()]

    def _completions(self, tasks: Sequence[Task], answers: Sequence[list[int]]) -> list[Completion]:
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [
            Completion(task.row, text, answer, is_truncated=answer[-1] not in self.eos_token_ids)
            for task, text, answer in zip(tasks, texts, answers, strict=True)
        ]

    def _until_eos(self, ids: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(ids) if token in self.eos_token_ids), len(ids) - 1)
        return ids[: end + 1]

    def _answer(self, completion: Completion, scored: Scored) -> Answer:
        reward = scored.reward
        return Answer(
            completion=completion.text,
            reward=reward,
            passed=None if reward is None else reward >= self.spec.pass_threshold,
            completion_tokens=len(completion.token_ids),
            finish_reason="length" if completion.is_truncated else "stop",
            error=None if scored.error is None else scored.error[:MOST_ERROR],
        )


@contextmanager
def untouched_training(model: PreTrainedModel, device: Device) -> Iterator[None]:
    """Evaluation mode (no dropout, no gradient), with every random state put back as it was."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device.is_cuda else []), torch.no_grad():
            yield
    finally:
        model.train(was_training)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both of shape (prompts, longest prompt)."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    return ids, mask
