"""OpenAPI of the tools: request models, answers and the error shape, taken from the tool table. Validates nothing."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from recall.tools import TOOLS

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The body is not JSON.",
    "401": "No credential, or an unknown one.",
    "403": "The caller may not do this.",
    "404": "No such row, or nothing was indexed yet.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "422": "A field is wrong; the message names it.",
    "429": "Too many requests in flight; see Retry-After.",
    "503": "A store or every channel failed; see Retry-After.",
    "504": "The deadline passed.",
}


class Problem(BaseModel):
    """What went wrong. `code` is stable, `message` says what to do."""

    code: str
    message: str
    request_id: str


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: Problem


def describe(api: FastAPI) -> None:
    """Make `api.openapi()` show request and response schemas of every tool and the security scheme."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
            api.openapi_schema = _with_tools(schema)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _with_tools(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    models: dict[str, Any] = components.setdefault("schemas", {})
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    error = {"application/json": {"schema": {"$ref": _declared(models, ErrorBody)}}}
    for name, tool in TOOLS.items():
        operation = schema["paths"][f"/v1/{name}"]["post"]
        body = {"schema": {"$ref": _declared(models, tool.request)}}
        answer = {"schema": {"$ref": _declared(models, tool.result)}}
        # Either a token, or, where the operator allows it, being on the same machine.
        operation["security"] = [{"bearer": []}, {}]
        operation["requestBody"] = {"required": True, "content": {"application/json": body}}
        operation["responses"] = {
            "200": {"description": "The answer.", "content": {"application/json": answer}},
            **{status: {"description": text, "content": error} for status, text in _ERRORS.items()},
        }
    return schema


def _declared(models: dict[str, Any], kind: Any) -> str:
    """Put the schema of `kind` and of what it uses into `models`; its reference."""
    schema = TypeAdapter(kind).json_schema(ref_template=_REF)
    models.update(schema.pop("$defs", {}))
    if "$ref" in schema:
        return str(schema["$ref"])
    models[kind.__name__] = schema
    return _REF.format(model=kind.__name__)
