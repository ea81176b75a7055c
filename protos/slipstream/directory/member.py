"""A verify service as a directory names it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from slipstream.transport_settings import checked_address
from slipstream.v1 import directory_pb2


@dataclass(frozen=True, slots=True)
class Member:
    """One verify service. `epoch` tells processes at one address apart, 0: not told; `model` is for people."""

    address: str
    model: str = ""
    epoch: int = 0
    draining: bool = False

    def __post_init__(self) -> None:
        """ValueError unless the address can be dialled."""
        checked_address(self.address)


class Directory(Protocol):
    """Where lists of members come from."""

    def watch(self) -> AsyncIterator[tuple[Member, ...]]:
        """The whole list at once, and again at each change; it never ends, and yields nothing while it cannot tell."""
        ...


def checked_members(members: Iterable[Member]) -> tuple[Member, ...]:
    """All of them; ValueError if two share an address."""
    found = tuple(members)
    seen: set[str] = set()
    for member in found:
        if member.address in seen:
            raise ValueError(f"{member.address} is listed twice")
        seen.add(member.address)
    return found


def write_members(members: Iterable[Member]) -> directory_pb2.WatchResponse:
    """The list as a message."""
    return directory_pb2.WatchResponse(
        members=[
            directory_pb2.Member(address=each.address, model=each.model, epoch=each.epoch, draining=each.draining)
            for each in members
        ]
    )


def read_members(message: directory_pb2.WatchResponse) -> tuple[Member, ...]:
    """The list of a message; ValueError if it is malformed."""
    return checked_members(Member(each.address, each.model, each.epoch, each.draining) for each in message.members)
