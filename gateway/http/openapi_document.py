"""The OpenAPI document: request bodies, answers and errors of every endpoint."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from gateway.drafters.drafter_share import ShareRequest
from gateway.openai.adapter_schema import LOAD_PATH, UNLOAD_PATH, LoadAdapterRequest, UnloadAdapterRequest
from gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from gateway.openai.tokenize_schema import DetokenizeRequest, TokenizeRequest
from gateway.openai.types import (
    AdapterUnloaded,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    DetokenizedText,
    ErrorResponse,
    Health,
    ModelEntry,
    ModelList,
    Readiness,
    Services,
    ShareSet,
    Tokens,
    Version,
)

Responses = dict[int | str, dict[str, Any]]

_REASONS: Final = {
    400: "A field is malformed, out of range or not supported; `param` names it.",
    401: "The API key is missing or unknown.",
    403: "No keys are required, and the Host header or the page's origin is none that this server is known by.",
    404: "The model is unknown.",
    409: "Gateway and verify service do not fit together.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "The queue is full, or the client reads too slowly; retry later.",
    500: "A bug of the server.",
    503: "No verify service is ready, or the gateway is shutting down; retry later.",
    504: "The verify service did not answer in time.",
}
_EVENT: Final = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "description": "A chunk as JSON (ChatCompletionChunk, or for /v1/completions Completion); [DONE] at the "
            "end; or an ErrorResponse as JSON, after which the stream ends.",
        }
    },
}
_EVENTS: Final = {"text/event-stream": {"schema": _EVENT}}
_REFERENCES: Final = "#/components/schemas/{model}"


def _responses(model: Any, *errors: int, events: bool = False) -> Responses:
    answers: Responses = {200: {"model": model, "description": "The answer."}}
    if events:
        answers[200] |= {"content": _EVENTS, "description": "The answer; with stream=true as server-sent events."}
    return answers | {code: {"model": ErrorResponse, "description": _REASONS[code]} for code in errors}


API_RESPONSES: Final[dict[str, Responses]] = {
    "models": _responses(ModelList, 400, 401, 403, 500, 503, 504),
    "model": _responses(ModelEntry, 400, 401, 403, 404, 500, 503, 504),
    "services": _responses(Services, 400, 401, 403, 500),
    "share": _responses(ShareSet, *_REASONS),
    "load": _responses(ModelEntry, *_REASONS),
    "unload": _responses(AdapterUnloaded, *_REASONS),
    "completions": _responses(Completion, *_REASONS, events=True),
    "chat": _responses(ChatCompletion, *_REASONS, events=True),
    "tokenize": _responses(Tokens, *_REASONS),
    "detokenize": _responses(DetokenizedText, *_REASONS),
}
PROBE_RESPONSES: Final[dict[str, Responses]] = {
    "version": {200: {"model": Version, "description": "The server's version."}},
    "health": {200: {"model": Health, "description": "The process lives."}},
    "ready": {
        200: {"model": Readiness, "description": "Requests are to be sent here."},
        503: {"model": Readiness, "description": "Requests are to be sent elsewhere, or later; `status` says why."},
    },
}
_BODIES: Final[dict[str, type[BaseModel]]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/services/share": ShareRequest,
    LOAD_PATH: LoadAdapterRequest,
    UNLOAD_PATH: UnloadAdapterRequest,
}


def describe(app: FastAPI, *, secured: bool) -> None:
    """Make `app` publish the document. The endpoints read their bodies themselves, so these are added here."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, secured=secured)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _document(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    references, definitions = models_json_schema(
        [(body, "validation") for body in _BODIES.values()], ref_template=_REFERENCES
    )
    chunk = TypeAdapter(ChatCompletionChunk).json_schema(ref_template=_REFERENCES)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= definitions["$defs"] | chunk.pop("$defs") | {"ChatCompletionChunk": chunk}
    for path, body in _BODIES.items():
        content = {"application/json": {"schema": references[(body, "validation")]}}
        document["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's own validation is not in use
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    if secured:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            if path.startswith("/v1/") or path in _BODIES or path == "/services":
                for operation in operations.values():
                    operation["security"] = [{"key": []}]
    return document
