"""Every setting of every process, read once from `PODIUM_*` environment variables (or a `.env` file)."""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CHECKOUT = Path(__file__).resolve().parent.parent
BUNDLED_MODEL = "podium/tiny"


class ExportTarget(StrEnum):
    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"


def _theirs(name: str) -> AliasChoices:
    """A variable that the target's own client knows by this name too: no prefix of ours."""
    return AliasChoices(name, name.lower())


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="PODIUM_", env_file=".env", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    # Where things are.
    database_url: str = "postgresql+psycopg://podium@127.0.0.1:5432/podium"
    """SQLAlchemy URL. PostgreSQL is the only dialect."""
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Anything that speaks the Redis protocol. It carries hints only and may be flushed at any time."""
    store_url: str = "file:///var/lib/podium/store"
    """`file:///folder` or `s3://bucket[/prefix]`; S3 credentials come from the usual AWS variables."""
    s3_endpoint_url: str | None = None
    """For S3-compatible servers; unset means AWS."""
    s3_public_endpoint_url: str | None = None
    """Where clients reach that server: downloads redirect there. Unset: they stream through the API (AWS: redirect)."""
    runs_dir: Path = Path("/var/lib/podium/runs")
    """Run directories of this worker: local, fast, disposable."""

    # What clients may do.
    models: dict[str, Path] = Field(
        default_factory=lambda: {BUNDLED_MODEL: CHECKOUT / "examples/tiny_model/podium-tiny"}
    )
    """Models on the operator's disk, by the name that clients use (JSON object)."""
    allow_hub_models: bool = True
    """Whether jobs may name any model of the Hub (`HF_ENDPOINT` chooses which hub)."""
    max_file_bytes: int = Field(512 * 1024 * 1024, gt=0)
    max_reward_bytes: int = Field(256 * 1024, gt=0)
    max_body_bytes: int = Field(1024 * 1024, gt=0)
    """Cap of every request body that is not a file upload."""

    # Leases. Takeover of a dead worker's job takes at most lease_ttl_s plus a poll.
    lease_ttl_s: float = Field(60.0, gt=0)
    lease_renew_s: float = Field(10.0, gt=0)
    lease_margin_s: float = Field(15.0, gt=0)
    """A supervisor that could not renew kills its trainer this long before the lease ends."""
    dispatch_poll_s: float = Field(1.0, gt=0)
    hint_repeat_s: float = Field(30.0, gt=0)
    """A due job is hinted again after this long: a lost message costs at most this."""
    max_failures: int = Field(3, ge=1)
    """Crash budget of a job: the failure with this number is final."""
    max_preemptions: int = Field(100, ge=1)

    # Grading.
    run_reward_code_without_sandbox: bool = False
    """Whether reward code runs as a plain child process, with the worker's files, network and user. For machines that
    cannot isolate, and whose rewards all come from people who may log in to them anyway."""
    reward_memory_bytes: int = Field(2 * 1024**3, ge=256 * 1024**2)
    """Of all processes of one reward together."""
    allow_private_reward_urls: bool = False
    """Whether the built-in reward `http` may ask hosts that are not on the internet: this machine, its network, the
    cloud's metadata. Anybody who may create jobs can then send requests there."""
    grader_wait_s: float = Field(12.0, ge=0, le=50)
    """How long a request to try a grader waits for the grading worker; an answer usually takes well under a second."""
    report_wait_s: float = Field(3.0, ge=0, le=50)
    """How long an upload of a reward, and a dry run of a job, wait for the report of a probe."""

    # The worker.
    gpus: int = Field(1, ge=1, le=64)
    """GPUs of this worker, all for the one job that it runs, which may ask for as many (`resources.gpus`): the first
    of those in CUDA_VISIBLE_DEVICES. The API must know what the largest worker has: it refuses jobs that want more."""
    trainer_python: Path | None = None
    """Interpreter of the trainer's environment (vLLM pins its own torch); unset means the worker's own."""
    supervisor_poll_s: float = Field(0.5, gt=0)
    stop_grace_s: float = Field(25.0, gt=0)
    """How long a trainer may take to save and leave after it was told to."""
    preemption_source: Literal["none", "file", "aws", "gcp", "azure"] = "none"
    """Where this machine announces that it will be taken away, beside SIGTERM."""
    preemption_file: Path = Path("/run/podium/preempted")
    """With source `file`: the machine goes away once this file exists."""
    preemption_url: str | None = None
    """Metadata server to ask instead of the cloud's own address."""
    preemption_poll_s: float = Field(2.0, gt=0)
    mean_time_between_preemptions_s: float = Field(4 * 3600.0, gt=0)
    """What this machine is expected to live; with the measured cost of a save it sets the checkpoint interval."""
    watchdog_first_s: float = Field(3600.0, gt=0)
    """How long a phase of the trainer may take that has not yet been seen to end."""
    watchdog_least_s: float = Field(300.0, gt=0)
    """How long any phase may take, however short it usually is."""
    watchdog_factor: float = Field(10.0, gt=1)
    """How many times its longest so far a phase may take."""
    gc_every_s: float = Field(3600.0, gt=0)
    """How often what nobody owns is removed from the store: torn checkpoints, dangling uploads, orphans."""
    gc_min_age_s: float = Field(86400.0, gt=0)
    """What is younger may still be somebody's."""

    # Exports (docs/exports.md). The API reads the first; keys and addresses are for the exporter alone.
    integrations: Annotated[tuple[ExportTarget, ...], NoDecode] = (ExportTarget.TENSORBOARD,)
    """Where jobs may send their metrics (`wandb,mlflow`). What leaves the server is for its operator to allow."""
    wandb_api_key: SecretStr | None = Field(None, validation_alias=_theirs("WANDB_API_KEY"))
    wandb_base_url: str | None = Field(None, validation_alias=_theirs("WANDB_BASE_URL"))
    """Of a W&B server of one's own; unset: theirs."""
    wandb_mode: Literal["online", "offline", "disabled"] = Field("online", validation_alias=_theirs("WANDB_MODE"))
    wandb_dir: Path | None = Field(None, validation_alias=_theirs("WANDB_DIR"))
    """Where offline runs are written, for `wandb sync`."""
    mlflow_tracking_uri: SecretStr | None = Field(None, validation_alias=_theirs("MLFLOW_TRACKING_URI"))
    """A server, or a database of MLflow's."""
    trackio_dir: Path | None = Field(None, validation_alias=_theirs("TRACKIO_DIR"))
    """The folder that `trackio show` looks at."""
    export_poll_s: float = Field(2.0, gt=0)
    export_refresh_s: float = Field(60.0, gt=0)
    """How often an event file is written anew while its job runs."""
    export_call_s: float = Field(120.0, gt=0)
    """How long one call of a target's client may take; the process of a longer one is ended."""
    export_retry_s: float = Field(10.0, gt=0)
    """Pause after a first failure; it doubles with each that follows, up to 15 minutes."""
    export_patience_s: float = Field(86400.0, gt=0)
    """An export that has failed for so long after its job's end is given up."""

    gpu_price_usd_per_hour: float = Field(0.0, ge=0)
    gpu_name: str | None = None

    @model_validator(mode="after")
    def _leases_can_be_kept(self) -> Self:
        if self.lease_renew_s + self.lease_margin_s >= self.lease_ttl_s:
            raise ValueError("lease_renew_s + lease_margin_s must be less than lease_ttl_s, or no lease could be kept")
        return self

    @field_validator("integrations", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """Names with commas between them; an empty text is none."""
        return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value

    # Telling.
    log_format: str = Field("console", pattern="^(console|json)$")
    log_level: str = "INFO"


@cache
def get_settings() -> Settings:
    """The settings of this process; tests build their own `Settings` and pass them in."""
    return Settings()
