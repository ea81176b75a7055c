"""What a replica runs: a model, its proposers, flags of the services, and what of a host it owns."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from launcher.services.tls_files import TlsFiles

START_SECONDS = 300.0
FINISH_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Paths are those of every host. Equal specs ask for interchangeable replicas.

    draft: NAME[:DIR] of each proposer, as `launcher.services.commands.Layout` has it.
    cpus, gpus: what Ray sets aside for a replica.
    start_seconds: how long it may take from its place on a host until it serves.
    finish_seconds: how long requests that cannot move may take to end where they are, once it drains.
    tls: the PEM files ca, cert and key of connections between services, and the server's name; empty: plain text.
    """

    model: str
    draft: tuple[str, ...] = ()
    verify_arguments: tuple[str, ...] = ()
    draft_arguments: tuple[str, ...] = ()
    cpus: float = 1.0
    gpus: int = 0
    start_seconds: float = START_SECONDS
    finish_seconds: float = FINISH_SECONDS
    tls: tuple[str, ...] = ()

    @property
    def tls_files(self) -> TlsFiles | None:
        """Of connections between the services."""
        if not self.tls:
            return None
        ca, cert, key, name = self.tls
        return TlsFiles(Path(ca), Path(cert), Path(key), name)

    def with_tls(self, files: TlsFiles | None) -> ReplicaSpec:
        """The same, whose services speak TLS by these files."""
        if files is None:
            return self
        assert files.cert is not None
        assert files.key is not None
        paths = (str(each.absolute()) for each in (files.ca, files.cert, files.key))
        return replace(self, tls=(*paths, files.server_name))

    def to_json(self) -> dict[str, Any]:
        """For the controller's memory."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What `to_json` made, also after it was written and read as text."""
        read: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()}
        return cls(**read)
