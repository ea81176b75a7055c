"""A directory behind gRPC: a real server, watched over its restarts."""

import asyncio
import contextlib

import pytest

from slipstream.directory.client import RemoteDirectory, checked_directory, open_directory
from slipstream.directory.file import FileDirectory
from slipstream.directory.member import Member
from slipstream.directory.servicer import SERVICE_NAME, DirectoryServicer
from slipstream.rpc.server import GrpcServer

ONE, TWO = Member("a:1", "m", 3), Member("b:2", draining=True)


async def start(port=0):
    servicer = DirectoryServicer()
    server = GrpcServer(host="127.0.0.1", port=port, services=[SERVICE_NAME], register=servicer.register)
    return server, servicer, await server.start()


def test_tells_each_list_to_each_watcher_and_again_after_a_restart(caplog):
    async def run():
        server, servicer, port = await start()
        one, two = (RemoteDirectory(f"127.0.0.1:{port}").watch() for _ in range(2))
        async with contextlib.aclosing(one), contextlib.aclosing(two):
            waiting = asyncio.create_task(anext(one))
            await asyncio.sleep(0.3)
            assert not waiting.done(), "nothing is published yet"
            servicer.publish([ONE])
            assert await asyncio.wait_for(waiting, 20) == (ONE,)
            assert await asyncio.wait_for(anext(two), 20) == (ONE,)
            waiting = asyncio.create_task(anext(one))
            servicer.publish([ONE])
            servicer.publish([ONE, TWO])
            assert await asyncio.wait_for(waiting, 20) == (ONE, TWO)
            waiting = asyncio.create_task(anext(one))
            await server.drain(0)
            await asyncio.sleep(0.5)
            assert not waiting.done()
            server, servicer, _ = await start(port)
            servicer.publish([TWO])
            assert await asyncio.wait_for(waiting, 20) == (TWO,)
        await server.drain(0)

    asyncio.run(run())
    assert sum("is away" in record.message for record in caplog.records) == 1


def test_two_of_one_address_are_not_published():
    with pytest.raises(ValueError, match="twice"):
        DirectoryServicer().publish([ONE, Member("a:1")])


def test_addresses_name_the_form():
    assert isinstance(open_directory(checked_directory("file:/x")), FileDirectory)
    assert isinstance(open_directory(checked_directory("host:1")), RemoteDirectory)
    for wrong in ("file:", "host", ""):
        with pytest.raises(ValueError, match=r"file|host:port"):
            checked_directory(wrong)
