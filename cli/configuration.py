"""The settings, as the command line reads them: what is wrong with them is told by the variables' names."""

from pydantic import ValidationError

from cli.errors import SettingsInvalid
from core.settings import Settings, get_settings

PREFIX = "PODIUM_"
DEFAULT_TENANT = "default"


def read_settings() -> Settings:
    """Raises SettingsInvalid with every variable that cannot be used."""
    try:
        return get_settings()
    except ValidationError as error:
        faults = (f"{PREFIX}{fault['loc'][0]}".upper() + f": {fault['msg']}" for fault in error.errors())
        raise SettingsInvalid("; ".join(faults)) from error
