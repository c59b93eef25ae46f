"""Who is asking: `Authorization: Bearer pk_...` names a tenant, and every query below asks for that tenant's rows."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.dependencies import SessionsDep
from core.db import api_keys
from core.errors import AuthenticationFailed
from core.ids import TenantId

_bearer = HTTPBearer(
    scheme_name="bearer",
    bearerFormat="pk_...",
    description="An API key made by `podium keys create`; the local stack prints one.",
    auto_error=False,
)


@dataclass(frozen=True, slots=True)
class Caller:
    tenant_id: TenantId
    key_id: str


def authenticate(
    sessions: SessionsDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> Caller:
    if credentials is None:
        raise AuthenticationFailed("There is no API key in the request.", param="Authorization")
    with sessions() as session:
        key = api_keys.find(session, credentials.credentials)
    if key is None:
        raise AuthenticationFailed("The API key is not valid, or was revoked.", param="Authorization")
    return Caller(key.tenant_id, key.id)


CallerDep = Annotated[Caller, Security(authenticate)]
