"""The `slipstream` command."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from launcher.deploy_command import deploy
from launcher.tls_options import TlsCa, TlsCert, TlsKey, TlsServerName, tls_files
from slipstream import __version__
from slipstream.commands import Commands

app = Commands(
    name="slipstream",
    help="Serves large language models with speculative decoding, exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would take brackets in help texts for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)

LOG_LEVELS = ("debug", "info", "warning", "error")
Address = Annotated[str, typer.Option(metavar="HOST:PORT|unix:PATH", help="gRPC address of the gateway.")]


def _level(value: str) -> str:
    if value not in LOG_LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LOG_LEVELS)}")
    return value


def _device(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise typer.BadParameter(f"must be cpu, cuda or cuda:N, got {value!r}")
    return value


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    *,
    version: Annotated[  # its callback answers it
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What holds for every command."""


@app.command()
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
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.", callback=_level)] = "info",
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Whether the gateway logs a line for each request.")
    ] = True,
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
    from launcher.commands import Layout, free_ports, join_address
    from launcher.models import (
        ModelNotFoundError,
        configured_draft,
        resolve_defaults,
        resolve_draft,
        resolve_model,
        resolve_template,
    )
    from launcher.serve import PortTakenError, ServeOptions, check_ports
    from launcher.serve import serve as run
    from slipstream.extras import require
    from slipstream.speculation.reading import json_text, parse

    require("serve", "slipstream serve")
    if draft and speculative_config is not None:
        raise typer.BadParameter("--draft and --speculative-config exclude each other")
    shared = ("--log-level", log_level, "--drain-seconds", str(drain_seconds))
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
                *_flags({"device": device, "tensor-parallel-size": tensor_parallel_size, "mode": mode}),
                *_flags({"max-context": max_context}),
                *_flags({"draft-deadline-ms": draft_deadline_ms, "inproc-threads": draft_threads}),
                *(verify_arg or ()),
            ),
            draft_arguments=(
                *("--log-level", log_level),
                *_flags({"threads": draft_threads, "device": device}),
                *(draft_arg or ()),
            ),
            gateway_arguments=(
                *shared,
                *_flags({"api-keys-file": api_keys_file, "resume-seconds": resume_seconds}),
                *_flags({"chat-template": resolve_template(chat_template)}),
                *_flags({"generation-config": resolve_defaults(generation_config, folder)}),
                *(() if access_log else ("--no-access-log",)),
                *_flags({"ssl-certfile": ssl_certfile, "ssl-keyfile": ssl_keyfile}),
                *_flags({"ssl-ca-certs": ssl_ca_certs, "ssl-cert-reqs": ssl_cert_reqs}),
                *(gateway_arg or ()),
            ),
            tls=tls_files(tls_ca, tls_cert, tls_key, tls_server_name, mutual=True),
        )
        check_ports(layout)
    except (ModelNotFoundError, PortTakenError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    options = ServeOptions(
        model_name or folder.name,
        start_seconds=start_seconds,
        drain_seconds=drain_seconds,
        max_restarts=max_restarts,
        hang_seconds=hang_seconds,
    )
    raise typer.Exit(run(layout, options))


@app.command()
def chat(
    *,
    address: Address = "127.0.0.1:50051",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    message: Annotated[str | None, typer.Option(help="Ask this one question and leave.")] = None,
    temperature: Annotated[float, typer.Option(help="0 picks the most likely token.", min=0, max=2)] = 0.7,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus kept. [default: the model's, or 1]", min=0, max=1)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 512,
    seed: Annotated[int | None, typer.Option(help="Makes answers repeatable.", min=0)] = None,
    proposer: Annotated[str | None, typer.Option(help="Proposer to use. [default: the operator's]")] = None,
    speculation: Annotated[bool, typer.Option(help="Whether to speculate.")] = True,
    api_key: Annotated[str, typer.Option(help="API key.", envvar="SLIPSTREAM_API_KEY")] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Talk to a running server. Text is coloured by how many drafted tokens its verify step accepted."""
    from launcher.chat import ChatOptions
    from launcher.chat import chat as run

    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    options = ChatOptions(
        address=address,
        system=system,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        proposer=proposer,
        speculation=speculation,
        api_key=api_key,
        tls=files.read() if files else None,
    )
    raise typer.Exit(run(options, message))


@app.command()
def info(
    *,
    json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
    verify: Annotated[
        str, typer.Option(metavar="HOST:PORT|unix:PATH", help="Verify service.", envvar="SLIPSTREAM_VERIFY_ADDRESS")
    ] = "127.0.0.1:50052",
    gateway: Annotated[
        str,
        typer.Option(
            metavar="[https://]HOST:PORT|unix:PATH",
            help="HTTP address of the gateway.",
            envvar="SLIPSTREAM_GATEWAY_ADDRESS",
        ),
    ] = "127.0.0.1:8000",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Show what runs, what is attached to what, and the process ids.

    Exit status 1 if a service does not answer, or a draft service's proposer is refused, as it does not fit the model.
    """
    from launcher.info import collect, render

    facts = collect(verify, gateway, tls_files(tls_ca, tls_cert, tls_key, tls_server_name))
    render(facts, as_json=json)
    raise typer.Exit(0 if facts.complete else 1)


@app.command()
def swap_draft(
    draft: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Draft service that takes requests over.")],
    *,
    share: Annotated[float, typer.Option(help="Part of the requests it takes; 1 takes all.", min=0.0, max=1.0)] = 1.0,
    verify: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Verify service. [default: where the draft service is attached]")
    ] = "",
    seconds: Annotated[float, typer.Option(help="How long to wait.", min=0.0)] = 60.0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Have a running draft service take requests over from others with the same proposers, and wait until it has.

    A draft service that is started takes all requests over by itself, unless it has --share. Exit status 1 if the
    requests have not moved in time.
    """
    from launcher.swap import run

    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    raise typer.Exit(run(draft, verify, share=share, seconds=seconds, tls=files.read() if files else None))


app.command()(deploy)


@app.command()
def probe(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT|unix:PATH", help="gRPC address of any service.")],
    *,
    attached: Annotated[
        str, typer.Option(metavar="NAME", help="Of a verify service: a proposer that must be attached to it as well.")
    ] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Exit with status 0 if the service reports SERVING, 1 otherwise: a health check for containers and scripts."""
    from launcher.readiness import HEALTH_SECONDS, attached_proposers, is_serving

    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    tls = files.read() if files else None
    ready = is_serving(address, HEALTH_SECONDS, tls)
    if ready and attached:
        ready = attached in attached_proposers(address, tls=tls)
    raise typer.Exit(0 if ready else 1)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    service: Annotated[str, typer.Argument(metavar="verify|draft|gateway")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS OF THE SERVICE]")] = None,
    *,
    health: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where the service answers gRPC. [default: as its flags or its environment say]"
        ),
    ] = "",
    hang_seconds: Annotated[
        float,
        typer.Option(
            help="Time without an answer to health checks after which the service is killed; 0: never.",
            min=0,
            envvar="SLIPSTREAM_RUN_HANG_SECONDS",
        ),
    ] = 30.0,
    start_seconds: Annotated[
        float,
        typer.Option(
            help="How much longer than that its start may take.", min=0, envvar="SLIPSTREAM_RUN_START_SECONDS"
        ),
    ] = 1800.0,
) -> None:
    """Run one service until it ends, and end it with status 1 if it hangs: for containers, whose engine restarts it.

    Options of this command stand before the service's name, the service's own behind it.
    """
    from launcher.run import run as run_service
    from launcher.run import service_command

    try:
        command = service_command(service, arguments or [], os.environ, health)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.Exit(run_service(command, hang_seconds=hang_seconds, start_seconds=start_seconds))


@app.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def train(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="STAGE [OPTIONS]", show_default=False)] = None,
) -> None:
    """From prompts to a drafter in service, stage by stage; `slipstream train --help` lists the stages."""
    from launcher.train import run

    run(arguments or ["--help"])


def main() -> None:
    """Entry point of the console script."""
    from slipstream.extras import MissingExtraError
    from slipstream.standard_streams import open_standard_streams

    open_standard_streams()
    try:
        app()
    except MissingExtraError as error:
        sys.exit(str(error))


def _flags(values: dict[str, object]) -> list[str]:
    return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
