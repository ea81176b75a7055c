"""The directory of a controller: it serves as long as it is held, and waits for a port that is taken."""

from __future__ import annotations

import asyncio
import gc
import socket

from launcher.cluster.directory_thread import DirectoryThread
from slipstream.directory.client import RemoteDirectory
from slipstream.directory.member import Member
from support.ask import wait_until

HOST = "127.0.0.1"


async def first(address):
    async for members in RemoteDirectory(address).watch():
        return members
    return None


def test_watchers_are_told_what_is_published_as_long_as_the_process_lives():
    directory = DirectoryThread(HOST, 0)
    wait_until(lambda: not directory.error, lambda: directory.error)
    gc.collect()
    for members in ((Member("h:1"),), (Member("h:1", draining=True), Member("h:2", "m", 7))):
        directory.publish(members)
        assert asyncio.run(asyncio.wait_for(first(directory.address), 20)) == members


def test_a_port_that_is_taken_is_tried_again():
    with socket.create_server((HOST, 0)) as taken:
        directory = DirectoryThread(HOST, taken.getsockname()[1])
        wait_until(lambda: "listen" in directory.error or "bind" in directory.error, lambda: directory.error)
    wait_until(lambda: not directory.error, lambda: directory.error, 20.0)


def test_the_port_that_it_got_is_told_for_the_one_that_comes_after_it():
    directory = DirectoryThread(HOST, 0)
    wait_until(lambda: not directory.error, lambda: directory.error)
    assert directory.address == f"{HOST}:{directory.port}" and directory.port
