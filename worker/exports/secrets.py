"""Keys of targets stay out of the log, whatever a client puts into its errors: MLflow's name the whole address."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from core.settings import Settings

HIDDEN = "***"
_SECRET_NAME = re.compile(r"(WANDB|MLFLOW|DATABRICKS)_\w*(KEY|TOKEN|PASSWORD|SECRET)")


class WithoutSecrets(logging.Formatter):
    """Another formatter's lines, without these texts."""

    def __init__(self, inner: logging.Formatter, secrets: frozenset[str]) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = sorted(secrets, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        line = self._inner.format(record)
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN)
        return line


def keep_secrets(settings: Settings, environment: Mapping[str, str]) -> None:
    """From here on the log hides them, and what clients print by themselves goes nowhere."""
    secrets = frozenset(secrets_of(settings, environment))
    for handler in logging.getLogger().handlers:
        handler.setFormatter(WithoutSecrets(handler.formatter or logging.Formatter(), secrets))
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends; our handlers keep the old one


def secrets_of(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    named = [value for name, value in environment.items() if _SECRET_NAME.fullmatch(name)]
    key, uri = settings.wandb_api_key, settings.mlflow_tracking_uri
    known = [secret.get_secret_value() for secret in (key, uri) if secret is not None]
    password = urlsplit(uri.get_secret_value()).password if uri is not None else None
    passwords = [] if password is None else [password, unquote(password)]
    yield from filter(None, [*named, *known, *passwords])
