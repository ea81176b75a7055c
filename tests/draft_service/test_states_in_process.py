"""States on verify's device reach proposers of its own process there, row by row, for as long as both live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest
import torch

from draft_service.in_process import InProcessHost
from draft_service.proposers.base import DraftRequest, Opening, Proposer
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, RequestOpening, StateChunk, StateSpan
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host
from verify_service.hidden_states import device_ring_pool
from verify_service.hidden_states.device_ring import RingSlice
from verify_service.hidden_states.rows import HiddenStateRows

KEY = RequestKey(1, 1)
HIDDEN = 1024
FACTS = LinkFacts("m", "t", 100, HIDDEN, 2, 512, 64, feature_boundaries=(0, 1, 2, 3), most_boundaries=1)
ROWS = 2
"""Of a step, all of which are accepted."""


class Reader(Proposer):
    """Keeps the states that it gets. The host's memory stands for a device's."""

    name, max_nodes, max_depth, feature_boundaries = "p", 8, 4, (1,)
    shares_thread, state_device = True, "cpu:0"

    def __init__(self) -> None:
        self.states: list[torch.Tensor] = []

    def open(self, session: int, opening: Opening) -> None:
        return None

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        return None

    def take_features(self, session: int, first_position: int, features: torch.Tensor) -> None:
        self.states.append(features)

    def close(self, session: int) -> None:
        return None

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [TokenTree.chain((7,)) for _ in requests]


class FarReader(Reader):
    """On another device than the model, of which only shapes are known."""

    state_device = "meta"


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def host(reader: Reader) -> Iterator[InProcessHost]:
    host = InProcessHost([reader])
    yield host
    host.stop(30.0)


def opened(host: InProcessHost, max_step_rows: int) -> DraftLink:
    link = DraftLink(FACTS, LinkConfig(deadline=30.0))
    attach_host(link, host, device="cpu:0", max_step_rows=max_step_rows)
    link.begin(RequestOpening(KEY, "p", (1, 2, 3), 3, SamplingParams(seed=9), 0, "", "", 0))
    return link


def numbers(first: int, rows: int) -> torch.Tensor:
    """Of positions from `first` on: no two rows are alike."""
    return torch.arange(first, first + rows).repeat_interleave(HIDDEN).to(torch.bfloat16).view(rows, HIDDEN)


def stepped(link: DraftLink, first: int, rows: int) -> HiddenStateRows:
    """What a step that computes these positions captures; on the host are other numbers than on the device."""
    (spans,) = link.reserve_ring([StateSpan(KEY, first, rows)], (1,))
    copied = partial(fill, spans, first, rows)
    return HiddenStateRows((1,), first, np.zeros((rows, HIDDEN), np.uint16), spans, copied)


def fill(spans: Sequence[RingSlice], first: int, rows: int) -> None:
    for span in spans:
        span.target[span.offset : span.offset + rows * HIDDEN] = numbers(first, rows).flatten()


def decode(link: DraftLink, steps: int) -> int:
    """A prompt of three tokens, then steps; returns how many positions have states."""
    link.send_states([StateChunk(KEY, stepped(link, 0, 2))])
    end, length = 2, 3
    for _ in range(steps):
        states = stepped(link, end, ROWS)
        end, length = end + ROWS, length + ROWS
        link.commit([Committed(KEY, (7,) * ROWS, length, 4, 2, states)])
        assert link.collect([KEY]) == [TokenTree.chain((7,))]
    return end


def test_all_rows_come_from_the_device_while_the_ring_goes_round(host, reader, monkeypatch) -> None:
    monkeypatch.setattr(device_ring_pool, "_ROUNDED", 1 << 12)
    link = opened(host, max_step_rows=8)
    (attachment,) = link._router.live
    assert attachment.ring is not None
    end = decode(link, 50)
    assert attachment.ring.written > 3 * attachment.ring.block.size
    states = torch.cat(reader.states)
    assert torch.equal(states.view(torch.int16), numbers(0, end).view(torch.int16))
    link.close()
    assert attachment.ring is None


def test_the_ring_is_the_models_and_its_rows_are_copied_to_another_device() -> None:
    reader = FarReader()
    host = InProcessHost([reader])
    link = opened(host, max_step_rows=8)
    (attachment,) = link._router.live
    assert attachment.ring is not None and attachment.ring.block.numbers().device.type == "cpu"
    assert decode(link, 2) == sum(map(len, reader.states)) == 6
    assert {states.device.type for states in reader.states} == {"meta"}
    link.close()
    host.stop(30.0)


def test_a_model_on_the_cpu_has_no_ring(host, reader) -> None:
    link = DraftLink(FACTS, LinkConfig(deadline=30.0))
    attachment = attach_host(link, host, device="cpu", max_step_rows=8)
    assert attachment.ring is None
    link.close()


def test_without_memory_on_the_device_states_come_from_the_host(host, reader, monkeypatch) -> None:
    monkeypatch.setattr(device_ring_pool, "TensorBlock", no_memory)
    link = opened(host, max_step_rows=8)
    assert decode(link, 2) == 6
    assert torch.equal(torch.cat(reader.states), torch.zeros(6, HIDDEN, dtype=torch.bfloat16))
    link.close()


def no_memory(size: int, device: str) -> None:
    raise device_ring_pool.DeviceMemoryError("out of memory")
