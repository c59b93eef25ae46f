"""How a resource's router is made, so that every operation has the same door and the same documented errors."""

from fastapi import APIRouter
from fastapi.routing import APIRoute

from app.bodies import BoundedRoute
from app.errors import error_responses


def resource_router(prefix: str, *, tag: str) -> APIRouter:
    """A router for `/v1/...` endpoints. An operation adds `responses=error_responses(404, ...)` of its own."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=BoundedRoute, responses=error_responses(401, 422, 500, 503))


def operation_id(route: APIRoute) -> str:
    """`list_files` as `listFiles`: the name of the generated clients' method, stable as long as the function's is."""
    first, *rest = route.name.split("_")
    return first + "".join(word.capitalize() for word in rest)
