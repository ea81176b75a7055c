"""What a drafter sends over a stream into the draft link of a verify service, between the steps of its loop."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from draft_service.protocol.codec import decode_command_bytes
from fuzz.draft_records import Guess, attach
from fuzz.messages import made
from fuzz.played_link import SLOTS, PlayedLink
from fuzz.raw_bytes import joined, parted
from fuzz.target import Target
from slipstream.rpc.errors import SlipstreamError
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.codec import decode_replies, encode_commands

BEGIN, COMMIT, COLLECT, _, RECEIVE, TAKE, END, ATTACH = range(8)
_STEPS = (BEGIN, COMMIT, COMMIT, COLLECT, COLLECT, RECEIVE, RECEIVE, RECEIVE, RECEIVE, TAKE, END, ATTACH)


def steps(random: Random, transport: str) -> list[bytes]:
    """A drafter that attaches, requests that begin, and then anything in any order."""
    guess = Guess(random)
    first = made(random, [lambda each: attach(each, transport)]) if random.random() < 0.2 else None
    parts = [bytes([ATTACH]) + (first or attach(random, transport).SerializeToString())]
    for _ in range(random.choice((1, 1, 2, 3))):
        guess.begin()
        parts.append(bytes([BEGIN, len(guess.lengths) - 1]))
    for _ in range(1 + int(random.expovariate(0.2))):
        if random.random() < 0.4:
            parts.extend(_round(random, guess))
            continue
        kind = random.choice(_STEPS)
        if kind == COMMIT:
            tokens, nodes = random.randrange(4), random.choice((0, 7, 63, 63))
            guess.commit(tokens)
            parts.append(bytes([kind, tokens, nodes, random.choice((0, 3, 63))]))
        elif kind == RECEIVE:
            parts.append(bytes([kind]) + made(random, [guess.replies]))
        elif kind == ATTACH:
            parts.append(bytes([kind]) + made(random, [lambda each: attach(each, transport)]))
        else:
            parts.append(bytes([kind, random.randrange(4)]))
    return parts


def _round(random: Random, guess: Guess) -> list[bytes]:
    """A step as it should be: commit, trees, perhaps stale ones too, and collect."""
    tokens = random.randrange(4)
    guess.commit(tokens)
    parts = [bytes([COMMIT, tokens, 63, 63])]
    parts += [bytes([RECEIVE]) + guess.replies(random).SerializeToString() for _ in range(random.choice((1, 1, 2)))]
    return [*parts, bytes([COLLECT])]


class DraftLinkMessages(Target):
    """No tree that breaks a rule reaches a step; whoever sends what is malformed loses its attachment, nobody else."""

    name: ClassVar[str] = "draft_link"
    share: ClassVar[int] = 130

    def make(self, random: Random) -> bytes:
        return joined(steps(random, "grpc"))

    def check(self, data: bytes) -> None:
        played = PlayedLink()
        attachments: list[Attachment] = []
        for part in parted(data):
            kind, rest = (part[0] % 8, part[1:]) if part else (TAKE, b"")
            if kind == ATTACH:
                if attachment := played.attach(rest):
                    attachments.append(attachment)
            elif kind in (RECEIVE, TAKE):
                for attachment in attachments:
                    _exchange(played, attachment, rest if kind == RECEIVE else None)
            else:
                play(played, kind, rest)
        played.close()


def play(played: PlayedLink, kind: int, rest: bytes) -> None:
    """A step of the loop, or the beginning or end of a request."""
    first, second, third = [*rest[:3], 0, 0, 0][:3]
    if kind == BEGIN:
        played.begin(first)
    elif kind == COMMIT:
        played.commit(first, second, third)
    elif kind == COLLECT:
        played.collect()
    elif kind == END:
        played.end(first)


def _exchange(played: PlayedLink, attachment: Attachment, received: bytes | None) -> None:
    """As the servicer does: take a message in, or the next records out, which a draft service must understand."""
    if attachment.ended is not None:
        return
    try:
        if received is not None:
            played.link.receive(attachment, decode_replies(received, SLOTS), len(received))
        else:
            while records := played.link.take(attachment):
                decode_command_bytes(encode_commands(records))
    except SlipstreamError as error:
        played.drop(attachment, error)
