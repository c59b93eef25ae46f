"""Rewards that leave the grading sandbox: code in sandboxes of its own, and an HTTP endpoint of the user's."""

import base64
import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from core.builtin_rewards.parameters import Builtin, ColumnName, ReferenceBuiltin

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"}
)
_SET_BY_US = ", ".join(f"`{name}`" for name in (*sorted(_RESERVED_HEADERS), "webhook-*"))


class CodeTests(ReferenceBuiltin):
    """The share of the row's tests that the completion's code passes, each run in a sandbox of its own.

    The code is the last Markdown fence, or the whole text without one. Tests are Python text (asserts), a list of such
    texts, a list of `{"input", "output"}` (standard input and output), or `{"inputs": [...], "outputs": [...]}`; also
    as JSON text. Outputs are compared outside the sandbox, line by line, without trailing white space. Asserts run
    beside the code that they test: code that means to can make them pass.
    """

    builtin: Literal["code_tests"]
    language: Literal["python"] = "python"
    timeout_s: float = Field(5.0, gt=0, le=60, description="Per test.")
    memory_mb: int = Field(
        512,
        ge=128,
        le=8192,
        description="Of each process of a test, as address space; the operator's limit counts too.",
    )
    require: Literal["share", "all"] = Field("share", description="`all`: 1 where every test passes, else 0.")
    example: ClassVar[Mapping[str, Any]] = {"column": "tests", "timeout_s": 5, "require": "all"}


class Credentials(BaseModel):
    """What an `http` reward sends and no document of a job shows: kept beside the spec, never in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    secret: str | None = Field(None, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)


CREDENTIAL_FIELDS = frozenset(Credentials.model_fields)
"""No message about a request shows what stands in one of these."""


class Http(Builtin):
    """What an endpoint of yours answers: a batch of rollouts is posted as JSON, `{"scores": [...]}` comes back.

    A score is a number, null (no answer), or an object with `score` and numbers that become metrics. With a secret,
    requests are signed in the Standard Webhooks form. Timeouts, connection failures and the statuses 408, 425, 429 and
    5xx are infrastructure errors; redirects and all other statuses but 2xx are user errors. Neither is ever a 0.
    Addresses that are not public are refused unless the operator allows them. `docs/builtin-rewards.md` shows the
    request.
    """

    builtin: Literal["http"]
    url: str = Field(max_length=2048)
    secret: str | None = Field(None, repr=False, max_length=256, description="`whsec_` and base64 of 24 to 64 bytes.")
    headers: dict[str, Annotated[str, StringConstraints(max_length=4096, pattern=r"^[\x20-\x7e]*$")]] = Field(
        default_factory=dict, repr=False, max_length=16
    )
    timeout_s: float = Field(30.0, gt=0, le=300, description="For a whole batch.")
    sends: tuple[ColumnName, ...] = Field((), max_length=64, description="Columns to send. Unset: none.")
    example: ClassVar[Mapping[str, Any]] = {
        "url": "https://grader.example.org/score",
        "sends": ["answer"],
        "timeout_s": 10,
    }

    @property
    def columns(self) -> tuple[str, ...]:
        return self.sends

    def apart(self) -> tuple["Http", Credentials | None]:
        """The parameters without what is secret, and that; None where there is none."""
        if self.secret is None and not self.headers:
            return self, None
        credentials = Credentials(secret=self.secret, headers=self.headers)
        return self.model_copy(update={"secret": None, "headers": {}}), credentials

    def rejoined(self, credentials: Credentials | None) -> "Http":
        return self if credentials is None else self.model_copy(update=dict(credentials))

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            port_is_good = parts.port != 0
        except ValueError:
            raise ValueError("is not a URL") from None
        if parts.scheme not in {"https", "http"} or not parts.hostname or not port_is_good:
            raise ValueError("must be an http or https URL")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise ValueError("must have no user, password or fragment; put credentials into `headers`")
        if not value.isascii() or any(character.isspace() for character in value):
            raise ValueError("must be ASCII without white space")
        return value

    @field_validator("secret")
    @classmethod
    def _is_a_key(cls, value: str | None) -> str | None:
        if value is not None:
            signing_key(value)
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _HEADER.fullmatch(name) or name.lower() in _RESERVED_HEADERS or name.lower().startswith("webhook-"):
                raise ValueError(f"must be names that HTTP allows; not to be set are {_SET_BY_US}")
        return value


def signing_key(secret: str) -> bytes:
    """The bytes of a Standard Webhooks secret; raises ValueError."""
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
        raise ValueError("must be `whsec_` and the base64 of 24 to 64 random bytes")
    return key


def is_public(address: str) -> bool:
    """Whether an IP address (text) may be reached by rewards: of the internet, not of a host, a network or a cloud."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed in _NAT64:
        mapped = ipaddress.IPv4Address(parsed.packed[-4:])
    if mapped is not None:
        return is_public(str(mapped))
    if any(parsed.version == network.version and parsed in network for network in _NOT_PUBLIC):
        return False
    return parsed.is_global and not parsed.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # Azure's host, with the metadata and keys of its machines
            "fec0::/10",  # site-local, of old (RFC 3879)
            "64:ff9b:1::/48",  # NAT64 of a network's own (RFC 8215)
            "::/96",  # IPv4-compatible, of old (RFC 4291)
            "::ffff:0:0:0/96",  # IPv4-translated (RFC 2765)
        ),
    )
)
"""What `is_global` calls global although it leads into a host, a network or a cloud."""
