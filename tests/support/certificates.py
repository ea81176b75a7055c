"""An authority of the tests' own, and certificates that it has signed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from launcher.services.tls_files import TlsFiles
from slipstream.rpc.tls import Tls


@dataclass(frozen=True)
class Certificates:
    """Files: the authority's certificate, and a certificate for `name` with its key."""

    name: str
    ca: Path
    cert: Path
    key: Path

    @property
    def tls_flags(self) -> tuple[str, ...]:
        """Of every service: TLS between services."""
        names = ("--tls-server-name", self.name)
        return ("--tls-ca", str(self.ca), "--tls-cert", str(self.cert), "--tls-key", str(self.key), *names)

    @property
    def ssl_flags(self) -> tuple[str, ...]:
        """Of the gateway: TLS for clients."""
        return ("--ssl-certfile", str(self.cert), "--ssl-keyfile", str(self.key))

    @property
    def files(self) -> TlsFiles:
        """As commands of the launcher take them."""
        return TlsFiles(self.ca, self.cert, self.key, self.name)

    def tls(self) -> Tls:
        return Tls.read(self.ca, self.cert, self.key, self.name)

    def context(self, *, own: bool = True) -> ssl.SSLContext:
        """Of a client, which shows the certificate if it has one."""
        context = ssl.create_default_context(cafile=self.ca)
        if own:
            context.load_cert_chain(self.cert, self.key)
        return context


def write_certificates(folder: Path, name: str = "127.0.0.1", authority: trustme.CA | None = None) -> Certificates:
    """A certificate for a host or address, of a new authority if none is given."""
    authority = authority or trustme.CA()
    folder.mkdir(parents=True, exist_ok=True)
    found = Certificates(name, *(folder / file for file in ("ca.pem", "cert.pem", "key.pem")))
    issued = authority.issue_cert(name)
    authority.cert_pem.write_to_path(found.ca)
    found.key.write_bytes(issued.private_key_pem.bytes())
    found.cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return found
