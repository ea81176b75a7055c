"""The OpenAI API over HTTP."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from gateway.access.access_log import Access, access_of
from gateway.core import request_id
from gateway.core.limits import adapter_of
from gateway.core.request import ChoiceRequest, ServedAdapter, VerifyInfo
from gateway.drafters import drafter_share
from gateway.drafters.missing_proposers import missing_proposers
from gateway.drafters.service_report import service_reports
from gateway.http.errors import error_response, plain_error, unknown_path
from gateway.http.openapi_document import API_RESPONSES, PROBE_RESPONSES, describe
from gateway.http.response import EventStreamResponse, WholeResponse
from gateway.openai.adapter_schema import (
    LOAD_PATH,
    MOST_ADAPTER_BYTES,
    UNLOAD_PATH,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from gateway.openai.chat_output import ChatShape
from gateway.openai.output import CompletionShape, OutputOptions, OutputWriter, Shape
from gateway.openai.types import AdapterUnloaded, ModelEntry, ModelList, Readiness, Services, ShareSet
from gateway.service import READY, Gateway
from gateway.text.body import read_body
from gateway.text.prepared import Prepared, WorkerTask
from gateway.web.page import page_routes
from slipstream.adapter_names import adapted_fingerprint, adapter_name
from slipstream.rpc.errors import CancelledError, PayloadTooLargeError, PermissionDeniedError, SlipstreamError

_DISCARDED_BODIES: Final = 16
"""A body too large is read up to this many times the limit, so that its sender sees the answer."""


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application over `gateway`."""
    app = FastAPI(title="Slipstream", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    api = OpenAiApi(gateway)
    app.add_api_route("/v1/models", api.list_models, responses=API_RESPONSES["models"])
    app.add_api_route("/v1/models/{model:path}", api.get_model, responses=API_RESPONSES["model"])
    app.add_api_route("/services", api.services, responses=API_RESPONSES["services"])
    app.add_api_route("/services/share", api.share, methods=["POST"], responses=API_RESPONSES["share"])
    app.add_api_route("/v1/completions", api.complete, methods=["POST"], responses=API_RESPONSES["completions"])
    app.add_api_route("/v1/chat/completions", api.chat, methods=["POST"], responses=API_RESPONSES["chat"])
    app.add_api_route(LOAD_PATH, api.load_adapter, methods=["POST"], responses=API_RESPONSES["load"])
    app.add_api_route(UNLOAD_PATH, api.unload_adapter, methods=["POST"], responses=API_RESPONSES["unload"])
    app.add_api_route("/tokenize", api.tokenize, methods=["POST"], responses=API_RESPONSES["tokenize"])
    app.add_api_route("/detokenize", api.detokenize, methods=["POST"], responses=API_RESPONSES["detokenize"])
    app.add_api_route("/version", api.version, responses=PROBE_RESPONSES["version"])
    app.add_api_route("/health", api.health, responses=PROBE_RESPONSES["health"])
    app.add_api_route("/ready", api.ready, responses=PROBE_RESPONSES["ready"])
    app.add_api_route("/metrics", api.metrics, response_class=PlainTextResponse)
    if gateway.settings.page:
        app.router.routes.extend(page_routes())
    app.add_exception_handler(SlipstreamError, api.on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, api.on_cut_off)
    app.add_exception_handler(Exception, api.on_error)
    describe(app, secured=gateway.keys.required)
    return app


class OpenAiApi:
    """The endpoints."""

    __slots__ = ("_gateway", "_reasoning_fields", "_version")

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        named = gateway.settings.reasoning_field
        self._reasoning_fields = ("reasoning", "reasoning_content") if named == "both" else (named,)
        self._version = importlib.metadata.version("slipstream-server")

    async def list_models(self, request: Request) -> Response:
        """The models that can be asked for."""
        self._authenticate(request)
        info = await self._gateway.client.fetch_info()
        body: ModelList = {
            "object": "list",
            "data": [_model_entry(info), *(_model_entry(info, adapter) for adapter in info.adapters)],
        }
        return _json(body)

    async def get_model(self, model: str, request: Request) -> Response:
        """One model."""
        self._authenticate(request)
        info = await self._gateway.client.fetch_info()
        adapter = info.adapter(adapter_of(model or "/", info))
        return _json(_model_entry(info, adapter))

    async def load_adapter(self, request: Request) -> Response:
        """Load a LoRA adapter, where the operator allows it."""
        self._authenticate(request)
        raw = await _read_body(request, MOST_ADAPTER_BYTES)
        wish, _ = read_body(raw, LoadAdapterRequest)
        with _prefixed("lora_"):
            adapter = await self._gateway.load_adapter(wish.lora_name, wish.lora_path)
        return _json(_model_entry(self._gateway.model(), adapter))

    async def unload_adapter(self, request: Request) -> Response:
        """Unload a LoRA adapter once the requests that use it have ended, where the operator allows it."""
        self._authenticate(request)
        raw = await _read_body(request, MOST_ADAPTER_BYTES)
        wish, _ = read_body(raw, UnloadAdapterRequest)
        with _prefixed("lora_"):
            await self._gateway.unload_adapter(wish.lora_name)
        body: AdapterUnloaded = {"unloaded": wish.lora_name}
        return _json(body)

    async def services(self, request: Request) -> Response:
        """The verify services, what drafts for them, and what /ready says, with status 200 at all times."""
        self._authenticate(request)
        replicas = self._gateway.client.replicas
        reports, missing = await asyncio.gather(service_reports(replicas), missing_proposers(replicas))
        body: Services = {
            "status": self._gateway.status,
            "missing_proposers": missing,
            "shares_allowed": self._gateway.settings.allow_shares,
            "verify_services": reports,
        }
        return _json(body)

    async def share(self, request: Request) -> Response:
        """Set which part of the requests a draft service takes, where the operator allows it."""
        self._authenticate(request)
        raw = await _read_body(request, drafter_share.MOST_BYTES)
        settings = self._gateway.settings
        if not settings.allow_shares:
            raise PermissionDeniedError("shares of draft services are set here only with --allow-shares")
        wish, _ = read_body(raw, drafter_share.ShareRequest)
        await drafter_share.set_share(self._gateway.client.replicas, wish, settings.tls, settings.connect_timeout)
        body: ShareSet = {"share": wish.share}
        return _json(body)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation, written under the model's own chat template."""
        return await self._generate(request, WorkerTask.CHAT, ChatShape(self._reasoning_fields))

    async def complete(self, request: Request) -> Response:
        """Continue a text, or several."""
        return await self._generate(request, WorkerTask.COMPLETION, CompletionShape())

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a text, or of a conversation as the model's chat template writes it."""
        return await self._write(request, WorkerTask.TOKENIZE_HTTP)

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids, special tokens included."""
        return await self._write(request, WorkerTask.DETOKENIZE_HTTP)

    async def version(self) -> Response:
        """The version of this server."""
        return _json({"version": self._version})

    async def health(self) -> Response:
        """Whether the process lives."""
        return _json({"status": "ok", "process_id": os.getpid()})

    async def ready(self) -> Response:
        """Whether requests are to be sent here: a verify service is ready, and no shutdown has begun."""
        missing = await missing_proposers(self._gateway.client.replicas)
        status = self._gateway.status
        body: Readiness = {"status": status, "process_id": os.getpid(), "missing_proposers": missing}
        return _json(body, 200 if status == READY else 503)

    async def metrics(self, request: Request) -> Response:
        """Counters in the Prometheus text format, or OpenMetrics where it is accepted."""
        self._gateway.metrics.verify_ready.set(self._gateway.client.ready)
        body, media_type = self._gateway.metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    async def on_error(self, request: Request, error: Exception) -> Response:
        """What an endpoint raised."""
        response = error_response(error, request_id.of(request.scope))
        access_of(request.scope).fails(error)
        self._gateway.metrics.answered("http", str(response.status_code))
        return response

    async def on_cut_off(self, request: Request, error: Exception) -> Response:
        """A client that went away, or was given up, before its body had arrived: nobody reads the answer."""
        return await self.on_error(request, CancelledError("the client went away before its body had arrived"))

    def _authenticate(self, request: Request) -> str | None:
        return self._gateway.keys.tenant_of(request.headers.getlist("authorization"))

    async def _write(self, request: Request, job: WorkerTask) -> Response:
        """The answer that a text worker writes."""
        self._authenticate(request)
        raw = await _read_body(request, self._gateway.settings.max_body_bytes)
        body = await self._gateway.text.answer(job, raw, self._gateway.model())
        self._gateway.metrics.answered("http", "200")
        return Response(body, media_type="application/json")

    async def _generate(self, request: Request, job: WorkerTask, shape: Shape) -> Response:
        access = access_of(request.scope)
        self._gateway.tracing.begin(access, shape.operation)
        tenant = self._authenticate(request)
        raw = await _read_body(request, self._gateway.settings.max_body_bytes)
        info = self._gateway.model()
        prepared = await self._gateway.prepare(job, raw, info)
        return self._answer(prepared, shape, info, tenant, access)

    def _answer(
        self, request: Prepared, shape: Shape, info: VerifyInfo, tenant: str | None, access: Access
    ) -> Response:
        """The answer with `choices` choices for each prompt, those of a prompt beside each other."""
        count, access.stream = request.choices, request.stream
        choice_requests = [
            ChoiceRequest(
                prompt_token_ids=prompt,
                sampling=request.sampling,
                speculation=request.speculation,
                stop=request.stop,
                tenant=request.tenant if tenant is None else tenant,
                adapter_id=request.adapter_id,
                choice_index=choice,
                context=access.span.context,
                prompt_wire=wire,
                prompt_hashes=hashes,
                grammar_wire=request.grammar_wire,
                answer=request.answer,
            )
            for prompt, wire, hashes in zip(request.prompts, request.wires, request.hashes, strict=True)
            for choice in range(count)
        ]
        generation = self._gateway.open(
            choice_requests, info, prompt_field=request.prompt_field, grammar_field=request.grammar_field
        )
        options = OutputOptions(
            model=adapter_name(request.adapter_id) or info.model_name,
            fingerprint=adapted_fingerprint(info.fingerprint, request.adapter_id),
            logprobs=request.sampling.logprobs is not None,
            return_token_ids=request.return_token_ids,
            include_usage=request.include_usage,
            echoes=[echo for echo in request.echoes for _ in range(count)],
            top=request.sampling.logprobs or 0,
            prompt_logprobs=request.prompt_logprobs,
        )
        writer = OutputWriter(shape, generation, options, self._gateway.tokenizer)
        kind = EventStreamResponse if request.stream else WholeResponse
        return kind(generation, writer, self._gateway.metrics)


async def _read_body(request: Request, most: int) -> bytearray:
    """The body. PayloadTooLargeError beyond `most` bytes, after reading on for a while."""
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _DISCARDED_BODIES * most:
            break
        if size <= most:
            body += chunk
    if size > most:
        raise PayloadTooLargeError(f"the body has more than {most} bytes")
    return body


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return unknown_path(request.method, request.url.path)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return plain_error(error.status_code, message, error.headers)


@contextmanager
def _prefixed(prefix: str) -> Iterator[None]:
    """Errors of what is called within name fields as the body has them."""
    try:
        yield
    except SlipstreamError as error:
        if error.field:
            if error.message.startswith(f"{error.field} "):
                error.message = prefix + error.message
            error.field = prefix + error.field
        raise


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _model_entry(info: VerifyInfo, adapter: ServedAdapter | None = None) -> ModelEntry:
    return {
        "id": info.model_name if adapter is None else adapter.name,
        "object": "model",
        "created": 0,
        "owned_by": "slipstream",
        "parent": None if adapter is None else info.model_name,
        "max_model_len": info.max_context,
        "proposers": [proposer.name for proposer in info.proposers],
        "default_proposer": info.default_proposer or None,
    }
