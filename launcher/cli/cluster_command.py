"""The options of `slipstream cluster`, and the replicas that they ask for."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from launcher.cli.tls_options import TlsCa, TlsCert, TlsKey, TlsServerName, tls_files
from slipstream.commands import Commands
from slipstream.extras import require

if TYPE_CHECKING:
    from launcher.cluster.commands import Where
    from launcher.cluster.replica_spec import ReplicaSpec

cluster = Commands(
    name="cluster",
    help="Replicas of a model on several hosts, placed by Ray, scaled, drained and exchanged under way.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Option(help="Of the cluster: a Ray may have several.")]
Address = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="Of Ray's head. [default: the Ray of this host, or RAY_ADDRESS]"),
]
Wait = Annotated[float, typer.Option(help="How long to wait; the cluster goes on without.", min=0)]


@contextmanager
def _reported() -> Iterator[None]:
    """End the command with one line and status 1 where the cluster does not do as asked."""
    require("cluster", "slipstream cluster")
    from launcher.cluster.commands import ClusterError, RayError

    try:
        yield
    except (ClusterError, RayError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from error


def _where(name: str, address: str) -> Where:
    from launcher.cluster.commands import Where

    return Where(name, address)


@cluster.command()
def up(
    *,
    name: Name = "slipstream",
    address: Address = "",
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the model, the same on every host. [default: the demo model]"),
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="Name clients ask for. [default: the folder's name]")] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(metavar="[inproc:]PROPOSER[:DIR]|none", help="As of slipstream serve; repeat for several."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; of a replica's GPUs cuda is the first.")] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="GPUs of a host that share a model.", min=1, max=8)
    ] = 1,
    mode: Annotated[Literal["exact", "fast"] | None, typer.Option(help="As of slipstream serve.")] = None,
    max_context: Annotated[int | None, typer.Option(help="Most tokens of prompt and output.", min=0)] = None,
    max_running: Annotated[int | None, typer.Option(help="Requests that a replica decodes together.", min=1)] = None,
    verify_arg: Annotated[list[str] | None, typer.Option(metavar="ARG", help="Passed to each verify service.")] = None,
    draft_arg: Annotated[list[str] | None, typer.Option(metavar="ARG", help="Passed to each draft service.")] = None,
    replicas: Annotated[int | None, typer.Option(help="How many; as both bounds of scaling.", min=1)] = None,
    min_replicas: Annotated[int, typer.Option(help="The fewest.", min=1)] = 1,
    max_replicas: Annotated[int | None, typer.Option(help="The most. [default: as many as the fewest]", min=1)] = None,
    target_requests: Annotated[
        float,
        typer.Option(help="Running and waiting requests a replica; 0: 0.7 of what it decodes together.", min=0),
    ] = 0.0,
    longest_wait_s: Annotated[
        float, typer.Option(help="Seconds that the oldest request waits before that alone asks for a replica.", min=0)
    ] = 5.0,
    upscale_delay_s: Annotated[float, typer.Option(help="Seconds for which more must be asked for.", min=0)] = 30.0,
    downscale_delay_s: Annotated[float, typer.Option(help="Seconds for which fewer must be asked for.", min=0)] = 600.0,
    look_back_s: Annotated[float, typer.Option(help="Seconds over which requests are averaged.", min=0)] = 30.0,
    standby: Annotated[
        int, typer.Option(help="Replicas that stand by, started but for the model, where there is room.", min=0)
    ] = 0,
    cpus: Annotated[float, typer.Option(help="CPUs that Ray sets aside for a replica.", min=0)] = 1.0,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs of a replica. [default: one a rank on cuda, else none]", min=0)
    ] = None,
    start_seconds: Annotated[float, typer.Option(help="How long a replica may take to start.", min=1)] = 300.0,
    finish_seconds: Annotated[
        float,
        typer.Option(help="How long a replica that drains waits for requests that cannot move.", min=0),
    ] = 300.0,
    directory_port: Annotated[
        int, typer.Option(help="Of the directory, on the host of Ray's head; 0 takes a free one.", min=0, max=65535)
    ] = 50054,
    ray_port: Annotated[int, typer.Option(help="Of a Ray that is started here.", min=1, max=65535)] = 6379,
    wait_seconds: Wait = 600.0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Start replicas of a model and tell gateways of them; again with other options, exchange them one by one.

    Without --address the Ray of this host is joined, or one is started. Exit status 1 if the replicas do not serve in
    time; a new set that does not start is taken back.
    """
    with _reported():
        from launcher.cluster import commands
        from launcher.cluster.autoscaler import Scaling
        from launcher.cluster.replica_spec import ReplicaSpec
        from launcher.services.models import ModelNotFoundError, resolve_draft, resolve_model

        require("device", "slipstream cluster up")
        flags: dict[str, object] = {
            "model-name": model_name,
            "device": device,
            "mode": mode,
            "max-context": max_context,
        }
        flags |= {"max-running": max_running, "tensor-parallel-size": tensor_parallel_size}
        on_gpu = (device or "").startswith("cuda")
        least = replicas or min_replicas
        try:
            folder = resolve_model(model)
            scaling = Scaling(
                least=least,
                most=replicas or max_replicas or least,
                target_requests=target_requests,
                longest_wait=longest_wait_s,
                upscale_delay=upscale_delay_s,
                downscale_delay=downscale_delay_s,
                look_back=look_back_s,
                standby=standby,
            )
            spec = ReplicaSpec(
                model=str(folder),
                draft=resolve_draft(draft or (), demo=model is None, target=folder),
                verify_arguments=(*_flags(flags), *(verify_arg or ())),
                draft_arguments=(*_flags({"device": device}), *(draft_arg or ())),
                cpus=cpus,
                gpus=gpus if gpus is not None else tensor_parallel_size if on_gpu else 0,
                start_seconds=start_seconds,
                finish_seconds=finish_seconds,
            ).with_tls(tls_files(tls_ca, tls_cert, tls_key, tls_server_name, mutual=True))
        except (ModelNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error)) from error
        found = commands.up(
            _where(name, address), spec, scaling, port=directory_port, ray_port=ray_port, seconds=wait_seconds,
            tell=commands.print_line,
        )  # fmt: skip
        print(_greeting(spec, found.ready, found.directory))


def _greeting(spec: ReplicaSpec, ready: int, directory: str) -> str:
    tls = spec.tls_files
    files = " ".join(("", *tls.arguments)) if tls else ""
    return f"""
{ready} replicas serve {spec.model}.
Gateways, on any host and as many as wanted:
  python -m gateway --model {spec.model} --directory {directory}{files}
"""


@cluster.command()
def status(
    *,
    name: Name = "slipstream",
    address: Address = "",
    json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """Show nodes, their replicas, drafters, load and cache hits."""
    with _reported():
        from launcher.cluster import commands, status_tree

        found = commands.status(_where(name, address))
        if json:
            print(json_module.dumps(asdict(found), indent=2))
        else:
            status_tree.render(found)


@cluster.command()
def scale(
    least: Annotated[int, typer.Argument(metavar="REPLICAS", help="How many, or the fewest.", min=1)],
    most: Annotated[int | None, typer.Argument(metavar="[MOST]", help="The most, by load.", min=1)] = None,
    *,
    name: Name = "slipstream",
    address: Address = "",
    wait_seconds: Wait = 600.0,
) -> None:
    """Want another number of replicas, or other bounds."""
    with _reported():
        from launcher.cluster import commands

        most = most or least
        if most < least:
            raise typer.BadParameter("MOST must not be less than REPLICAS")
        found = commands.scale(_where(name, address), least, most, seconds=wait_seconds, tell=commands.print_line)
        print(f"{found.ready} replicas serve")


@cluster.command()
def drain(
    replica: Annotated[str, typer.Argument(metavar="REPLICA|NODE", help="As slipstream cluster status shows it.")],
    *,
    node: Annotated[
        bool, typer.Option("--node", help="Drain all replicas of a node, which gets none from then on.")
    ] = False,
    name: Name = "slipstream",
    address: Address = "",
    wait_seconds: Wait = 600.0,
) -> None:
    """Empty a replica and end it. Its requests move without a changed token; another one takes its place first."""
    with _reported():
        from launcher.cluster import commands

        found = commands.drain(
            _where(name, address), replica, node=node, seconds=wait_seconds, tell=commands.print_line
        )
        print(f"{found.ready} replicas serve")


@cluster.command()
def down(
    *,
    name: Name = "slipstream",
    address: Address = "",
    drain_seconds: Annotated[float, typer.Option(help="How long requests under way may take.", min=0)] = 30.0,
) -> None:
    """End all replicas, the controller, and the Ray that `up` has started, if it has."""
    with _reported():
        from launcher.cluster import commands

        commands.down(_where(name, address), drain_seconds=drain_seconds, tell=commands.print_line)


def _flags(values: dict[str, object]) -> tuple[str, ...]:
    return tuple(part for name, value in values.items() if value is not None for part in (f"--{name}", str(value)))
