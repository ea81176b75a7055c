"""The `slipstream` command."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.cluster_command import cluster
from launcher.cli.deploy_command import deploy
from launcher.cli.serve_command import serve
from launcher.cli.tls_options import TlsCa, TlsCert, TlsKey, TlsServerName, tls_files
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

Address = Annotated[str, typer.Option(metavar="HOST:PORT|unix:PATH", help="gRPC address of the gateway.")]


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


app.command()(serve)


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
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON Schema that answers fit.", exists=True, dir_okay=False, readable=True),
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show the tree of each verify step.")] = False,
    api_key: Annotated[str, typer.Option(help="API key.", envvar="SLIPSTREAM_API_KEY")] = "",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Talk to a running server. Text is coloured by how many drafted tokens its verify step accepted."""
    from launcher.cli.chat import ChatOptions
    from launcher.cli.chat import chat as run

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
        tree=tree,
        schema=None if schema is None else schema.read_text("utf-8"),
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
    from launcher.cli.info import collect, render

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
    from launcher.rollout.traffic_shift import run

    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    raise typer.Exit(run(draft, verify, share=share, seconds=seconds, tls=files.read() if files else None))


app.command()(deploy)
app.add_typer(cluster)


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
    from launcher.services.readiness import HEALTH_SECONDS, attached_proposers, is_serving

    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    tls = files.read() if files else None
    ready = is_serving(address, HEALTH_SECONDS, tls)
    if ready and attached:
        ready = attached in attached_proposers(address, tls=tls)
    raise typer.Exit(0 if ready else 1)


@app.command()
def directory(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="TOML file of [[members]]: address, and if wanted model, epoch and draining."
        ),
    ],
    *,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.", min=0, max=65535)] = 50054,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Tell gateways on any host (`--directory HOST:PORT`) which verify services there are, as a file lists them.

    The file is read again when it changes; no process needs a restart.
    """
    from launcher.supervision.directory import run as serve_directory
    from slipstream.rpc.errors import SlipstreamError

    files = tls_files(tls_ca, tls_cert, tls_key, "", mutual=True)
    try:
        serve_directory(file, host, port, files)
    except (OSError, ValueError, SlipstreamError) as error:
        raise typer.BadParameter(str(error)) from error


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    service: Annotated[str, typer.Argument(metavar="verify|draft|gateway")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS OF THE SERVICE]")] = None,
    *,
    health: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|unix:PATH",
            help="Where the service answers gRPC. [default: as its flags, environment or file say]",
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
    from launcher.supervision.run import run as run_service
    from launcher.supervision.run import service_command

    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        try:
            command = service_command(service, arguments or [], os.environ, health, folder=Path(folder))
        except (OSError, ValueError) as error:
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
    from launcher.cli.train import run

    run(arguments or ["--help"])


@app.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def quantize(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="DIR OUT [OPTIONS]", show_default=False)] = None,
) -> None:
    """Write a model with 8 or 4 bits a weight; `slipstream quantize --help` lists the options."""
    from launcher.cli.quantize import run

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
