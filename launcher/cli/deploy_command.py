"""The options of `slipstream deploy`, and the draft service that it starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from launcher.cli.tls_options import TlsCa, TlsCert, TlsKey, TlsServerName, tls_files

DEFAULT_VERIFY = "127.0.0.1:50052"


def deploy(
    running: Annotated[
        str,
        typer.Argument(
            metavar="[HOST:PORT]",
            help="Running draft service to roll out, with the new head under the old proposer names.",
            show_default="started from --draft",
        ),
    ] = "",
    *,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROPOSER[:DIR]",
            help="Start a draft service with this proposer, such as eagle3:DIR; repeat for several. It keeps "
            "running if it takes over.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the served model, for weights that a head shares with it. [default: the verify service's]",
        ),
    ] = None,
    verify: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Verify service. [default: where the draft service is attached]")
    ] = "",
    port: Annotated[int, typer.Option(help="Port of the draft service; 0 takes a free one.", min=0, max=65535)] = 0,
    draft_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="Passed to the draft service, e.g. --draft-arg=--topk=8.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Log file of the draft service. [default: slipstream-draft-PORT.log]"),
    ] = None,
    shares: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Traffic shares of the canary, one after the other, before it gets all requests."
        ),
    ] = "0.1,0.5",
    tokens: Annotated[
        int, typer.Option(help="Tokens from each side before the canary is judged at a share.", min=1)
    ] = 20_000,
    margin: Annotated[
        float, typer.Option(help="Tolerated relative drop in acceptance length.", min=0.0, max=0.99)
    ] = 0.02,
    confidence: Annotated[
        float,
        typer.Option(
            help="Confidence level of the one-sided Welch test that rolls the canary back.", min=0.5, max=0.9999
        ),
    ] = 0.99,
    seconds: Annotated[float, typer.Option(help="Time limit at each share.", min=1.0)] = 600.0,
    attach_seconds: Annotated[float, typer.Option(help="Time limit for the canary to attach.", min=1.0)] = 120.0,
    keep_loser: Annotated[bool, typer.Option("--keep-loser", help="Leave the losing draft service running.")] = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_server_name: TlsServerName = "",
) -> None:
    """Roll out a new draft service as a canary: a part of the requests first, then all; roll back if it is worse.

    The old one drafts beside it, and gets all requests back if the acceptance length drops significantly, or the new
    one dies or does not attach. The loser is stopped. Running requests go on. Exit status 0 if it took over, else 1.
    """
    from launcher.rollout.canary import RolloutPlan
    from launcher.rollout.deploy import deploy as run
    from launcher.services.free_ports import free_ports
    from launcher.services.models import ModelNotFoundError, resolve_draft, resolve_model
    from launcher.services.pidfd_process import PidfdProcess, start_to_stay
    from launcher.services.readiness import served_folder

    if bool(running) == bool(draft):
        raise typer.BadParameter("name a running draft service, or what to start with --draft")
    plan = RolloutPlan(_shares(shares), tokens, margin, confidence, seconds, attach_seconds, stop_loser=not keep_loser)
    files = tls_files(tls_ca, tls_cert, tls_key, tls_server_name)
    tls = files.read() if files else None
    own: PidfdProcess | None = None
    address = running
    signal.signal(signal.SIGTERM, _interrupt)
    if draft:
        port = port or free_ports(1)[0]
        address = f"127.0.0.1:{port}"
        try:
            target = resolve_model(model) if model else served_folder(verify or DEFAULT_VERIFY, tls=tls)
            specs = resolve_draft(draft, demo=False, target=target)
        except (ModelNotFoundError, ValueError) as error:
            raise typer.BadParameter(str(error)) from error
        hosted = [part for spec in specs for part in ("--proposers", spec)]
        log = log or Path(f"slipstream-draft-{port}.log")
        command = [sys.executable, "-m", "draft_service", "--verify", verify or DEFAULT_VERIFY]
        command += [
            "--port",
            str(port),
            *hosted,
            "--share",
            "0",
            *(files.arguments if files else ()),
            *(draft_arg or ()),
        ]
        own = start_to_stay(command, log)
        print(f"started {address}, process {own.pid}, log {log}")
    outcome = run(address, plan, verify_address=verify, own=own, tls=tls)
    print(f"{address} {outcome.verdict}: {outcome.reason}")
    if outcome.loser:
        print(outcome.loser)
    if own is not None and outcome.verdict == "returned" and log is not None:
        print(f"its log: {log}")
    raise typer.Exit(0 if outcome.verdict == "took over" else 1)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"--shares: {error}") from error
    if any(not 0.0 < share < 1.0 for share in shares):
        raise typer.BadParameter("--shares are above 0 and below 1")
    return shares
