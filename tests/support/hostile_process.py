"""A hostile draft service as a process of its own, until verify ends its attachment or the time is up.

    python -m support.hostile_process HOST:PORT ATTACK --name NAME --transport shm --seconds 3

Prints how many trees it was asked for and the status that ended it, NONE where nothing did.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from contextlib import ExitStack

import grpc

from slipstream.v1 import draft_pb2
from support.hostile import HostileDrafter, Wanted

ATTACKS = ("garbage", "stale", "flood", "twice", "silent", "wrong")


def answer(attack: str, wanted: Wanted) -> list | bytes:
    """What is sent for one wish."""
    if attack == "garbage":
        return os.urandom(60) + b"\xff\xff"
    if attack == "stale":
        return [wanted.tree([5], [-1], stamp=wanted.stamped(base_length=1))] * 60
    if attack == "silent":
        return []
    return [wanted.chain([7, 8])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verify")
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--name", required=True)
    parser.add_argument("--transport", default="shm", choices=("cuda_ipc", "shm", "grpc"))
    parser.add_argument("--boundaries", type=int, nargs="*", default=(), help="whose states it wants, for cuda_ipc")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()

    def attach() -> HostileDrafter:
        return HostileDrafter(
            options.verify,
            lambda wanted: answer(options.attack, wanted),
            name=options.name,
            transport=options.transport,
            boundaries=options.boundaries,
        )

    with ExitStack() as stack:
        drafter = stack.enter_context(attach())
        if options.attack == "twice":
            second = stack.enter_context(attach())
            print("another exchange of the same attachment:", _refusal(drafter))
            drafter = second
        if options.attack == "flood":
            threading.Thread(target=_flood, args=(drafter, options.seconds), daemon=True).start()
        status = drafter.wait_ended(options.seconds)
        print(f"asked for {drafter.wishes} trees, ended by {'NONE' if status is None else status.name}")
    return 0


def _refusal(drafter: HostileDrafter) -> str:
    try:
        next(iter(drafter.exchange_again()))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "NONE"


def _flood(drafter: HostileDrafter, seconds: float) -> None:
    message = draft_pb2.ExchangeRequest().SerializeToString()
    limit = time.monotonic() + seconds
    while drafter.status is None and time.monotonic() < limit:
        drafter.send(message)


if __name__ == "__main__":
    sys.exit(main())
