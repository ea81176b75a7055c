"""What training learns from is what a draft service is sent, bit for bit: the same text, served and extracted."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.rpc.channel import open_channel
from slipstream.v1 import tensor_pb2
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.drafters import WireDrafter, offer, tree_reply, wire_drafter
from support.features import conversation
from support.models import make_tiny_model
from support.served_verify import Client, served
from training.answers.dataset import write_set
from training.common.atomic_files import MismatchError
from training.features.dataset import FeatureSet
from training.features.online import OnlineFeatures
from training.features.run import extract_features, plan_features
from training.features.settings import FeatureSettings, Machine
from training.features.source import FeatureSource
from verify_service.draft_link.link_config import LinkConfig

BOUNDARIES = (3, 0, 2, 1)
"""In no order; of 2 layers, 3 is behind the final norm."""
ROW_BYTES = 2 * len(BOUNDARIES) * 128
LENGTHS = (5, 90, 41, 33)
"""Of prompts, the second in three chunks."""


class Sent:
    """A drafter that keeps the states it is sent, by slot, and proposes chains of which some tokens are right."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.accepted = 0
        self._texts = texts
        self._tokens: dict[int, list[int]] = {}
        self._rows: dict[int, list[bytes]] = {}

    def answer(self, _drafter: WireDrafter, kind: str, record: Any) -> list[Any]:
        slot = record.stamp.slot
        if kind == "open":
            assert record.cached_length == 0
            self._tokens[slot], self._rows[slot] = list(record.token_ids), []
        if kind in ("extend", "commit"):
            self._rows[slot].append(_data(record.features))
        if kind == "commit":
            self._tokens[slot] += record.token_ids
            self.accepted += len(record.token_ids) - 1
        if kind not in ("open", "commit") or record.max_nodes < 2:
            return []
        tokens = self._tokens[slot]
        known = next(text for text in self._texts if text[: len(tokens)] == tokens)
        return [tree_reply(record.stamp, [*known[len(tokens) :][: min(3, record.max_depth - 1)], 7])]

    def of(self, text: list[int]) -> bytes:
        """Rows of the first positions of a text: the states of the step that ends it are not sent."""
        slot = next(slot for slot, tokens in self._tokens.items() if tokens == text[: len(tokens)])
        return b"".join(self._rows[slot])


def _data(tensor: tensor_pb2.Tensor) -> bytes:
    assert tensor.data_type == tensor_pb2.DATA_TYPE_BFLOAT16
    assert tensor.shape[1] * 2 == ROW_BYTES
    return tensor.data


async def _serve(model: CausalLM, prompts: list[list[int]]) -> tuple[list[list[int]], Sent]:
    """The texts of all requests, and what a drafter was sent of them when they were served again with trees."""
    link = LinkConfig(deadline=10.0)
    engine = {"prefix_cache": False, "prefill_chunk": 32, "max_nodes": 8, "adaptive": False}
    async with served(model, link=link, boundaries=(0, 1, 2, 3), **engine) as one, open_channel(one.address) as channel:
        client = Client(channel)

        async def answers(first: int) -> list[list[int]]:
            numbers = range(first, first + len(prompts))
            for number, prompt in zip(numbers, prompts, strict=True):
                await client.submit(number, prompt=prompt, temperature=0.8, seed=number - first, max_tokens=24)
            await client.finish(*numbers)
            return [[*prompt, *client.tokens(number)] for number, prompt in zip(numbers, prompts, strict=True)]

        texts = await answers(0)
        sent = Sent(texts)
        proposer = offer("p", max_nodes=8, max_depth=4)
        proposer.feature_boundaries.extend(BOUNDARIES)
        async with wire_drafter(one.address, answer=sent.answer, proposers=[proposer]) as drafter:
            assert await answers(len(prompts)) == texts
            assert drafter.error is None
    return texts, sent


@pytest.fixture(scope="module")
def served_texts(tiny_model: Path) -> tuple[list[list[int]], Sent]:
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 512, length).tolist() for length in LENGTHS]
    return asyncio.run(_serve(CausalLM.load(tiny_model, threads=1), prompts))


def write_answers(folder: Path, texts: list[list[int]], late: int = 0, temperature: float = 0.8) -> None:
    """As the stage writes them; `late` shifts what the target is said to have produced."""
    records = [conversation(number, text, produced=24 - late) for number, text in enumerate(texts)]
    for number, record in enumerate(records):
        record["sequences"][0]["turns"] = [{"seed": number}]
    facts = {"settings": {"temperature": temperature, "top_p": 1.0, "top_k": 0}}
    write_set(folder, records, facts, 10)


@pytest.mark.parametrize("online", [False, True])
def test_states_are_those_that_a_drafter_is_sent(
    tiny_model: Path, tmp_path: Path, served_texts: tuple[list[list[int]], Sent], online: bool
) -> None:
    texts, sent = served_texts
    assert sent.accepted > 20
    answers, settings, machine = tmp_path, FeatureSettings(BOUNDARIES), Machine(threads=1, rows=50)
    write_answers(answers, texts)
    if not online:
        plan = plan_features([answers], tiny_model, settings)
        extract_features(plan, tmp_path / "features", machine, progress=False)
    source: FeatureSource = (
        OnlineFeatures([answers], tiny_model, settings, machine) if online else FeatureSet(tmp_path / "features")
    )
    assert source.boundaries == BOUNDARIES
    for text, sequence in zip(texts, source.batch(range(len(texts))), strict=True):
        assert sequence.token_ids.tolist() == text
        told = sent.of(text)
        assert len(told) >= (len(text) - 4) * ROW_BYTES
        assert sequence.states.contiguous().view(torch.uint8).numpy().tobytes()[: len(told)] == told
        assert sequence.produced.tolist() == [False] * (len(text) - 24) + [True] * 24


@pytest.mark.parametrize(
    "change",
    [{}, {"seeds": 1}, {"temperature": 0.0}, {"other_model": True}, {"late": 9}, {"late": -5}],
    ids=str,
)
def test_a_target_that_did_not_give_the_answers_is_told(
    tiny_model: Path,
    tmp_path: Path,
    served_texts: tuple[list[list[int]], Sent],
    change: dict[str, Any],
) -> None:
    """A span that begins late holds what the target said all the same; one that begins early has the user's words."""
    texts = served_texts[0]
    order = texts[change.get("seeds", 0) :] + texts[: change.get("seeds", 0)]
    model = make_tiny_model(tmp_path / "other", seed=7) if "other_model" in change else tiny_model
    write_answers(tmp_path, order, change.get("late", 0), change.get("temperature", 0.8))
    right = not change or change.get("late", 0) > 0
    with nullcontext() if right else pytest.raises(MismatchError, match=r"of \d\d tokens .* decides \d+ so"):
        OnlineFeatures([tmp_path], model, FeatureSettings(BOUNDARIES), Machine(threads=1, rows=50))
    unread = FeatureSettings((1, 2))
    assert len(OnlineFeatures([tmp_path], model, unread, Machine(threads=1, rows=50))) == len(texts)
