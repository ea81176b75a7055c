"""Unix sockets: their permissions, and files that were left behind."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from launcher.services.readiness import is_serving
from slipstream.rpc.errors import UnavailableError
from slipstream.rpc.server import GrpcServer
from slipstream.rpc.unix_socket import UnixSocket


def left_behind(path: Path) -> None:
    """As by a server that was killed."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_file_that_was_left_behind_makes_way_and_the_new_one_has_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "http.sock"
    left_behind(path)
    with UnixSocket(path, mode).listen(5):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with UnixSocket(path).listen(0) as first:
        for _ in range(3):  # the last of them with nobody to accept
            with pytest.raises(UnavailableError, match="another process listens there"):
                UnixSocket(path).listen(5)
        first.accept()[0].close()
        assert path.is_socket()
    path.unlink()
    path.write_text("precious")
    with pytest.raises(UnavailableError, match="is no socket"):
        UnixSocket(path).listen(5)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("path", ["/nowhere/x.sock", "/" + "x" * 107])
def test_where_none_can_be_it_is_said_so(path: str) -> None:
    with pytest.raises(UnavailableError, match="cannot listen on unix:/"):
        UnixSocket(Path(path)).listen(5)


def test_a_grpc_server_takes_no_other_ones_place_and_leaves_no_file(tmp_path: Path) -> None:
    one, other = UnixSocket(tmp_path / "grpc.sock"), UnixSocket(tmp_path / "beside.sock")
    left_behind(one.path)

    def make() -> GrpcServer:
        return GrpcServer(
            host="127.0.0.1", port=0, services=[], register=lambda server: None, unix_socket=one, beside=other
        )

    async def scenario() -> None:
        server = make()
        assert await server.start() == 0
        await server.set_serving(True)
        with pytest.raises(UnavailableError, match="another process listens there"):
            await make().start()
        for each in (one, other):
            assert stat.S_IMODE(each.path.stat().st_mode) == 0o600
            assert await asyncio.to_thread(is_serving, each.address)
        await server.drain(0)

    asyncio.run(scenario())
    assert not list(tmp_path.iterdir())
