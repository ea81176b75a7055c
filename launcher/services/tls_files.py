"""The PEM files with which this program and the services speak TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.rpc.tls import Tls


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files that were found good."""

    ca: Path
    cert: Path | None
    key: Path | None
    server_name: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """As flags of a service."""
        named = (("--tls-ca", self.ca), ("--tls-cert", self.cert), ("--tls-key", self.key))
        files = (part for flag, file in named if file is not None for part in (flag, str(file.absolute())))
        return (*files, *(("--tls-server-name", self.server_name) if self.server_name else ()))

    def read(self) -> Tls:
        """What channels take."""
        from slipstream.rpc.tls import Tls  # brings gRPC, without which the command line starts faster

        return Tls.read(self.ca, self.cert, self.key, self.server_name)
