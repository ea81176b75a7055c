"""Unix sockets to listen on: who may open the file, and what becomes of one that was left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.rpc.errors import UnavailableError

SCHEME: Final = "unix:"
"""Stands before the path in an address, as gRPC has it."""

MAX_PATH_BYTES: Final = 107
"""Longest path that Linux takes."""


def is_unix(address: str) -> bool:
    """Whether an address to dial is a Unix socket's and not host:port."""
    return address.startswith(SCHEME)


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket file and its permissions."""

    path: Path
    mode: int = 0o600

    @property
    def address(self) -> str:
        """As it is dialled: unix:PATH."""
        return f"{SCHEME}{self.path}"

    @contextlib.contextmanager
    def created(self) -> Iterator[None]:
        """What binds the socket within has it created with its permissions; the file of a dead server makes way.

        UnavailableError if the path is too long, somebody listens there, or it is no socket or cannot be removed. Other
        threads must not create files meanwhile.
        """
        self._claim()
        before = os.umask(0o777 & ~self.mode)
        try:
            yield
        finally:
            os.umask(before)

    def listen(self, backlog: int) -> socket.socket:
        """A socket that takes connections from here on. UnavailableError if that cannot be."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self.created():
                listener.bind(str(self.path))
            listener.listen(backlog)
        except OSError as error:
            listener.close()
            raise UnavailableError(f"cannot listen on {self.address}: {error.strerror or error}") from error
        except UnavailableError:
            listener.close()
            raise
        return listener

    def _claim(self) -> None:
        if len(os.fsencode(self.path)) > MAX_PATH_BYTES:
            raise UnavailableError(f"cannot listen on {self.address}: the path has more than {MAX_PATH_BYTES} bytes")
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise UnavailableError(f"cannot listen on {self.address}: the file is there and is no socket")
            if self._answers():
                raise UnavailableError(f"cannot listen on {self.address}: another process listens there")
            self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UnavailableError(f"cannot listen on {self.address}: {error.strerror or error}") from error

    def _answers(self) -> bool:
        """Whether somebody listens: only a refusal says that nobody does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.setblocking(False)
            try:
                caller.connect(str(self.path))
            except ConnectionRefusedError:
                return False
            except OSError:
                return True
        return True
