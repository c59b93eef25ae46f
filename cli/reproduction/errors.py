"""Why a job cannot be run again here."""

from core.errors import ServiceError


class BundleUnreadable(ServiceError):
    """The archive is damaged, was changed by hand, or comes from a newer version."""

    code = "bundle_unreadable"
    default_fix = "Download it again: GET /v1/fine_tuning/jobs/{id}/bundle."


class InputMissing(ServiceError):
    """Data, a source or credentials that the bundle names and does not hold."""

    code = "input_missing"


class RewardUnknown(ServiceError):
    code = "reward_unknown"
    default_fix = "Write NAME=FILE, with the name of one of the job's rewards."


class ServerLacksModel(ServiceError):
    """The server has no such model or checkpoint, or has it at another revision."""

    code = "server_lacks_model"
    default_fix = (
        "Run it where the same model is at the same revision: register its folder in PODIUM_MODELS, or allow models of "
        "the Hub. A job that began with a checkpoint can only run on the server that has that checkpoint."
    )
