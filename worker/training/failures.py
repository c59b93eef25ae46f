"""How a run can fail by name. What is not named here is a crash."""

from typing import ClassVar

import torch

from core.errors import FULL_DISK_ERRNOS, InvalidFile, ServiceError
from core.status import StatusReason
from worker.grading.sandbox import SandboxUnavailable
from worker.run_directory import FailureDetail


class RunFailed(ServiceError):
    """The run cannot go on, and says why."""

    reason: ClassVar[StatusReason]
    pauses: ClassVar[bool] = False
    """Whether the job waits for somebody to mend it, instead of ending."""

    @property
    def detail(self) -> FailureDetail:
        return FailureDetail(
            reason=self.reason,
            code=self.code,
            message=self.message,
            fix=self.fix,
            retryable=self.retryable,
            pauses=self.pauses,
        )


class ModelUnusable(RunFailed):
    reason = StatusReason.MODEL_UNUSABLE
    code = "model_unusable"
    default_fix = "Use a causal language model whose weights are safetensors and that needs no code of its own."


class HubUnreachable(RunFailed):
    """Nobody can say whether the model is there: an outage, which is no failure of the job."""

    reason = StatusReason.HUB_FAILED
    code = "hub_unreachable"
    default_fix = "Check the worker's way to the Hub (HF_ENDPOINT, proxy, token); the job is tried again by itself."
    retryable = True


class ModelVanished(RunFailed):
    """The hub has or gives it no more, or may not be asked. Somebody may bring it back, and the run goes on then."""

    reason = StatusReason.MODEL_UNUSABLE
    code = "model_vanished"
    pauses = True
    default_fix = (
        "Bring the repository back at that commit, or into the worker's cache, or give the worker a token that may "
        "read it (HF_TOKEN); then resume the job. Or register a copy in PODIUM_MODELS and create a new job with it."
    )


class NoChatTemplate(RunFailed):
    reason = StatusReason.MODEL_UNUSABLE
    code = "no_chat_template"
    default_fix = "Give plain text prompts, or use the instruction-tuned model of the family."


class DataUnusable(RunFailed):
    reason = StatusReason.DATA_UNUSABLE
    code = "data_unusable"


class RewardUnusable(RunFailed):
    """The reward cannot be loaded, or fails too often to train on."""

    reason = StatusReason.GRADER_FAILED
    code = "grader_failed"
    default_fix = (
        "Upload a corrected version of the reward, then preview the new job: POST /v1/fine_tuning/jobs?dry_run=true."
    )


class GradersDown(RewardUnusable):
    """Not the reward said no, but the grading processes: they crash, hang or do not start."""

    default_fix = "Look for crashes and endless loops in the reward, and at the worker's free memory."
    retryable = True


class GradingUnreliable(RunFailed):
    """Too many rollouts cannot be graded to go on training. The last good step has been saved."""

    reason = StatusReason.GRADER_FAILED
    code = "grading_unreliable"
    pauses = True
    default_fix = (
        "GET /v1/fine_tuning/jobs/{id}/rollouts shows each error. Resume the job when the cause is gone, or begin a "
        "new one from its checkpoint with a corrected version of the reward."
    )


class SignalStarved(RunFailed):
    """Nothing is learned any more, by the job's own rule (`stop` in the spec). The last step has been saved."""

    reason = StatusReason.SIGNAL_STARVED
    code = "signal_starved"
    pauses = True
    default_fix = (
        "GET .../diagnostics says why. Resume the job to go on for another window, cancel it, or begin a new one from "
        "its best checkpoint with other prompts."
    )


class NoSandbox(RunFailed):
    """The worker cannot isolate reward code, so it has run none."""

    reason = StatusReason.GRADER_FAILED
    code = SandboxUnavailable.code
    pauses = True


class QloraNeedsCuda(RunFailed):
    reason = StatusReason.INVALID_SPEC
    code = "qlora_needs_cuda"
    default_fix = 'Set adapter.method to "lora", or run this job on a worker with an NVIDIA GPU.'


class BitsandbytesNotInstalled(RunFailed):
    reason = StatusReason.INVALID_SPEC
    code = "bitsandbytes_not_installed"
    default_fix = 'Install the `qlora` extra where the trainer runs, or set adapter.method to "lora".'


class VllmNotInstalled(RunFailed):
    reason = StatusReason.INVALID_SPEC
    code = "vllm_not_installed"
    default_fix = "Set hyperparameters.use_vllm to false, or install the `vllm` extra where the trainer runs."


class TooFewGpus(RunFailed):
    reason = StatusReason.WORKER_UNFIT
    code = "too_few_gpus"
    default_fix = "Set PODIUM_GPUS to what the worker has (CUDA_VISIBLE_DEVICES says which)."
    retryable = True


class VllmUnsupported(RunFailed):
    reason = StatusReason.INVALID_SPEC
    code = "vllm_unsupported"


class SamplerCannotMerge(RunFailed):
    reason = StatusReason.INVALID_SPEC
    code = "sampler_cannot_merge"
    default_fix = "Adapt linear layers only (adapter.target_modules), or set hyperparameters.use_vllm to false."


class SamplerFailed(RunFailed):
    """The vLLM engine raised, died, or took weights that it does not serve."""

    reason = StatusReason.SAMPLER_FAILED
    code = "sampler_failed"
    default_fix = (
        "trainer.log has the engine's own words. The job is tried again by itself; if it fails so each time, set "
        "hyperparameters.use_vllm to false."
    )
    retryable = True


class StaleSampler(RunFailed):
    """vLLM samples from other weights than those that are trained. The last good step has been saved."""

    reason = StatusReason.SAMPLER_FAILED
    code = "sampler_stale"
    pauses = True
    default_fix = (
        "Nothing was trained on its samples. Resume the job to start the engine anew; if it happens again, set "
        "hyperparameters.vllm_native_adapter to false or use_vllm to false, and report it with the versions."
    )


class OutOfMemory(RunFailed):
    reason = StatusReason.OUT_OF_MEMORY
    code = "out_of_memory"
    default_fix = "Lower hyperparameters.rollouts_per_pass or max_completion_length, or use a larger GPU."
    retryable = True


class SamplerDoesNotFit(OutOfMemory):
    """The trainer leaves too little of the GPU for a vLLM engine."""

    code = "vllm_does_not_fit"
    default_fix = (
        "Set hyperparameters.use_vllm to false, method qlora, rollouts_per_pass or max_completion_length lower, or use "
        "a larger GPU."
    )
    retryable = False


class DiskFull(RunFailed):
    reason = StatusReason.DISK_FULL
    code = "disk_full"
    pauses = True
    default_fix = "Make room where the worker keeps its runs (PODIUM_RUNS_DIR), then resume the job."


class TrainerCrashed(RunFailed):
    """Nothing that this program foresaw; the traceback is in trainer.log."""

    reason = StatusReason.TRAINER_CRASHED
    code = "trainer_crashed"
    default_fix = "Read the end of trainer.log; report it if it looks like a bug of the service."
    retryable = True


_FULL_DISK = ("No space left on device", "os error 28", "PytorchStreamWriter failed writing")
_ALLOCATION_FAILURES = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What a RuntimeError of torch says when an allocator outside its own caching one gives up."""


def named_failure(error: Exception) -> RunFailed:
    """The failure that `error` stands for."""
    match error:
        case RunFailed():
            return error
        case SandboxUnavailable():
            return NoSandbox(error.message, fix=error.fix)
        case torch.OutOfMemoryError() | MemoryError():
            return OutOfMemory(first_line(error) or "The machine's memory is full.")
        case RuntimeError() if any(words in str(error) for words in _ALLOCATION_FAILURES):
            return OutOfMemory(first_line(error))
        case _ if type(error).__module__.partition(".")[0] == "vllm":
            return SamplerFailed(f"vLLM failed: {type(error).__name__}: {first_line(error)}")
        case _ if _means_disk_full(error):
            return DiskFull(f"The worker's disk is full: {first_line(error)}")
        case InvalidFile():
            return DataUnusable(error.message, fix=error.fix)
        case _:
            return TrainerCrashed(f"The trainer crashed: {type(error).__name__}: {first_line(error)}")


def _means_disk_full(error: Exception) -> bool:
    """torch and safetensors write from C++ and Rust, and wrap the errno into their own words."""
    if isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS:
        return True
    return any(words in str(error) for words in _FULL_DISK)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500]
