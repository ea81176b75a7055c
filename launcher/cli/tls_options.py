"""The options of TLS that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.services.tls_files import TlsFiles

TlsCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="SLIPSTREAM_TLS_CA",
        help="Authority that certificates of services must be signed by (PEM). With it connections are encrypted.",
    ),
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", envvar="SLIPSTREAM_TLS_CERT", help="Own certificate (PEM).")
]
TlsKey = Annotated[
    Path | None, typer.Option(metavar="FILE", envvar="SLIPSTREAM_TLS_KEY", help="Its private key (PEM).")
]
TlsServerName = Annotated[
    str,
    typer.Option(
        envvar="SLIPSTREAM_TLS_SERVER_NAME",
        help="Name that certificates of services are issued for. [default: the host that is dialled]",
    ),
]
_FLAGS = ("--tls-cert", "--tls-key", "--tls-ca")


def tls_files(
    ca: Path | None, cert: Path | None, key: Path | None, server_name: str, *, mutual: bool = False
) -> TlsFiles | None:
    """The files of a command's options, None for none; BadParameter if they do not go together.

    `mutual`: of a service, which needs all three.
    """
    if ca is cert is key is None:
        return None
    from slipstream.rpc.tls import check_files

    try:
        check_files(cert, key, ca, _FLAGS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if ca is None:
        raise typer.BadParameter("--tls-cert and --tls-key need --tls-ca")
    if mutual and cert is None:
        raise typer.BadParameter("--tls-ca needs --tls-cert and --tls-key: between services both ends show theirs")
    return TlsFiles(ca, cert, key, server_name)
