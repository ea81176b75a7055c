"""The options of `slipstream serve`, and the services that they ask for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from launcher.cli.tls_options import TlsCa, TlsCert, TlsKey, TlsServerName, tls_files

LOG_LEVELS = ("debug", "info", "warning", "error")


def _level(value: str) -> str:
    if value not in LOG_LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LOG_LEVELS)}")
    return value


def _device(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise typer.BadParameter(f"must be cpu, cuda or cuda:N, got {value!r}")
    return value


def serve(
    *,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Hugging Face folder of the target model. [default: the demo model]"),
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="Name clients ask for. [default: the folder's name]")] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[inproc:]PROPOSER[:DIR]|none",
            help="A proposer, such as ngram or draft-model:DIR; repeat it to host several. The first is the default. "
            "'inproc:' before it runs it in the verify service instead of a draft service; one name in both places "
            "drafts in the draft service, and in the verify service while that is away. "
            "'none' turns speculation off. [default: the demo model's draft model and ngram; for other models ngram]",
        ),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|FILE",
            help="The proposers, in place of --draft: a JSON object as vLLM's speculative_config, with its names or "
            "SGLang's, or a list of objects, or a file that holds either.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where model and proposers compute: cpu, cuda or cuda:N. [default: cpu; proposers: as the draft "
            "service finds]",
            callback=_device,
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size", "-tp", help="GPUs that share the model, from --device on.", min=1, max=8
        ),
    ] = None,
    mode: Annotated[
        Literal["exact", "fast"] | None,
        typer.Option(help="exact: a token depends on its request alone; fast: on cuda, libraries may break that."),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            "--max-model-len",
            help="Most tokens of prompt and output; 0: as the model allows. [default: 0]",
            min=0,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where the gateway listens; the other services stay on loopback.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="OpenAI HTTP API; 0 takes a free port.", min=0, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Public gRPC API; 0 takes a free port.", min=0, max=65535)] = 50051,
    verify_port: Annotated[int, typer.Option(help="Verify service; 0 takes a free port.", min=0, max=65535)] = 50052,
    draft_port: Annotated[int, typer.Option(help="Draft service; 0 takes a free port.", min=0, max=65535)] = 50053,
    threads: Annotated[int | None, typer.Option(help="Compute threads of the verify service.", min=1)] = None,
    draft_threads: Annotated[int | None, typer.Option(help="Compute threads of the proposers.", min=1)] = None,
    max_running: Annotated[int | None, typer.Option(help="Requests decoded together.", min=1)] = None,
    max_queued: Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.", min=0)] = None,
    num_pages: Annotated[
        int | None, typer.Option(help="KV pages; 0 plans them from the context length.", min=0)
    ] = None,
    page_size: Annotated[int | None, typer.Option(help="Tokens a KV page.", min=1, max=64)] = None,
    kv_cache_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="auto|bfloat16|float32|fp8",
            help="How keys and values are held; fp8: 8 bits an element. [default: auto]",
        ),
    ] = None,
    linear_activations: Annotated[
        str | None,
        typer.Option(
            metavar="bfloat16|fp8",
            help="Activations of layers with weights in fp8; fp8: in e4m3 too, on Hopper GPUs. [default: bfloat16]",
        ),
    ] = None,
    draft_deadline_ms: Annotated[
        float | None, typer.Option(help="Longest wait of a step for its trees.", min=0)
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Jinja chat template to use in place of the model's own, or where it has none."
        ),
    ] = None,
    generation_config: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|DIR",
            help="Where sampling parameters come from that a request does not set: the model's generation_config.json, "
            "nowhere, or that of another folder. [default: auto]",
        ),
    ] = None,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file: [keys] from API key to tenant, [tenants.NAME] with weights."),
    ] = None,
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            "--lora-modules", "--lora", metavar="NAME=DIR", help="A LoRA adapter to serve; repeat it for more."
        ),
    ] = None,
    lora_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder below which adapters may be loaded and unloaded over the APIs."),
    ] = None,
    max_loras: Annotated[int | None, typer.Option(help="Adapters loaded at a time.", min=0)] = None,
    max_lora_rank: Annotated[int | None, typer.Option(help="Largest rank of an adapter. [default: 16]", min=1)] = None,
    verify_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="ARG", help="Passed to the verify service, e.g. --verify-arg=--no-prefix-cache."),
    ] = None,
    draft_arg: Annotated[list[str] | None, typer.Option(metavar="ARG", help="Passed to the draft service.")] = None,
    gateway_arg: Annotated[list[str] | None, typer.Option(metavar="ARG", help="Passed to the gateway.")] = None,
    drain_seconds: Annotated[float, typer.Option(help="How long running streams may take to finish.", min=0)] = 30.0,
    resume_seconds: Annotated[
        float | None, typer.Option(help="How long streams wait for a verify service that died.", min=0)
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(help="Short runs in a row after which gateway or verify is given up; 0: never.", min=0)
    ] = 10,
    hang_seconds: Annotated[
        float,
        typer.Option(help="Time without an answer to health checks after which a service is killed; 0: never.", min=0),
    ] = 30.0,
    start_seconds: Annotated[float, typer.Option(help="How long the services may take to start.", min=1)] = 300.0,
    wait_for_drafter: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long the server, once it could answer, waits at most for its proposers to be attached before it "
            "says that it is ready; requests that come meanwhile are answered. 0: not at all. [default: 60 where a "
            "draft service is started, else 0]",
            min=0,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.", callback=_level)] = "info",
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="json: all log lines are JSON objects, one a line.")
    ] = "text",
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where spans of requests are sent by OTLP, such as http://127.0.0.1:4317. [default: as OTEL_* "
            "variables say, else nowhere]",
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Whether the gateway logs a line for each request.")
    ] = True,
    metrics_names: Annotated[
        Literal["slipstream", "vllm"] | None,
        typer.Option(help="vllm: metrics also under the names that dashboards of vLLM know. [default: slipstream]"),
    ] = None,
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Unix socket for the HTTP API, in place of --http-port.")
    ] = None,
    ssl_certfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the gateway, with which both APIs speak TLS.")
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    ssl_ca_certs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Authority that clients' certificates must be signed by.")
    ] = None,
    ssl_cert_reqs: Annotated[
        int | None, typer.Option(help="Whether clients must show one: 0 no, 1 they may, 2 yes.", min=0, max=2)
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Start gateway, verify and draft service on this host, keep them running, and drain them at the end.

    Each service also takes its settings from the environment (SLIPSTREAM_VERIFY_..., SLIPSTREAM_DRAFT_...,
    SLIPSTREAM_GATEWAY_...); `python -m verify_service --help` and so on list them.
    """
    from launcher.services.commands import Layout, join_address
    from launcher.services.free_ports import free_ports
    from launcher.services.metrics_ports import DRAFT_PORT, VERIFY_PORT, metrics_flags
    from launcher.services.models import (
        ModelNotFoundError,
        configured_draft,
        resolve_defaults,
        resolve_draft,
        resolve_model,
        resolve_template,
    )
    from launcher.supervision.serve import PortTakenError, ServeOptions, check_ports, wait_seconds
    from launcher.supervision.serve import serve as run
    from slipstream.extras import require
    from slipstream.speculation.reading import json_text, parse

    require("serve", "slipstream serve")
    if draft and speculative_config is not None:
        raise typer.BadParameter("--draft and --speculative-config exclude each other")
    logged = ("--log-level", log_level, "--log-format", log_format)
    traced = _flags({"otlp-traces-endpoint": otlp_traces_endpoint})
    shared = (*logged, *traced, "--drain-seconds", str(drain_seconds))
    spare = iter(free_ports(4))
    ports = [port or next(spare) for port in (http_port, grpc_port, verify_port, draft_port)]
    try:
        folder = resolve_model(model)
        layout = Layout(
            model=folder,
            draft=resolve_draft(draft or (), demo=model is None, target=folder)
            if speculative_config is None
            else configured_draft(parse(json_text(speculative_config)), folder),
            http_address=join_address(host, ports[0]) if uds is None else f"unix:{uds.absolute()}",
            grpc_address=join_address(host, ports[1]),
            verify_address=join_address("127.0.0.1", ports[2]),
            draft_address=join_address("127.0.0.1", ports[3]),
            verify_arguments=(
                *shared,
                *_flags({"model-name": model_name, "threads": threads, "max-running": max_running}),
                *_flags({"max-queued": max_queued, "num-pages": num_pages, "page-size": page_size}),
                *_flags({"kv-cache-dtype": kv_cache_dtype, "linear-activations": linear_activations}),
                *_flags({"device": device, "tensor-parallel-size": tensor_parallel_size, "mode": mode}),
                *_flags({"max-context": max_context, "metrics-names": metrics_names}),
                *(part for module in lora_modules or () for part in ("--lora-modules", module)),
                *_flags({"lora-dir": lora_dir, "max-loras": max_loras, "max-lora-rank": max_lora_rank}),
                *_flags({"draft-deadline-ms": draft_deadline_ms, "inproc-threads": draft_threads}),
                *metrics_flags(verify_arg or (), "SLIPSTREAM_VERIFY_METRICS_PORT", VERIFY_PORT, ports),
                *(verify_arg or ()),
            ),
            draft_arguments=(
                *logged,
                *_flags({"threads": draft_threads, "device": device}),
                *metrics_flags(draft_arg or (), "SLIPSTREAM_DRAFT_METRICS_PORT", DRAFT_PORT, ports),
                *(draft_arg or ()),
            ),
            gateway_arguments=(
                *shared,
                *_flags({"api-keys-file": api_keys_file, "resume-seconds": resume_seconds}),
                *_flags({"chat-template": resolve_template(chat_template)}),
                *_flags({"generation-config": resolve_defaults(generation_config, folder)}),
                *_flags({"metrics-names": metrics_names}),
                *(() if access_log else ("--no-access-log",)),
                *(() if lora_dir is None else ("--allow-lora-updates",)),
                *_flags({"ssl-certfile": ssl_certfile, "ssl-keyfile": ssl_keyfile}),
                *_flags({"ssl-ca-certs": ssl_ca_certs, "ssl-cert-reqs": ssl_cert_reqs}),
                *(gateway_arg or ()),
            ),
            tls=tls_files(tls_ca, tls_cert, tls_key, tls_server_name, mutual=True),
        )
        layout = replace(layout, wait_for_drafter=wait_seconds(wait_for_drafter, layout))
        check_ports(layout)
    except (ModelNotFoundError, PortTakenError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    options = ServeOptions(
        model_name or folder.name,
        start_seconds=start_seconds,
        drain_seconds=drain_seconds,
        max_restarts=max_restarts,
        hang_seconds=hang_seconds,
        log_format=log_format,
    )
    raise typer.Exit(run(layout, options))


def _flags(values: dict[str, object]) -> list[str]:
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
