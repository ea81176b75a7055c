"""What drafting decides where rows wake experts of their own, in virtual time: never worth less than plain decoding.

Passes take the time of the bytes that they read: of n rows, each with k of E experts whatever the others have, a layer
reads E (1 - (1 - k / E)^n) experts on average. Nodes may count as less than such a row, by what their tree shares.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from support.virtual_rounds import Machine, Rounds

TREE = (0.7, 0.1, 0.1, 0.05)
POOR = (0.3,)
LEAST = 0.98
"""Of the tokens a second of plain decoding."""
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def mixture(experts: int, chosen: int, *, always: float, all_experts: float) -> Machine:
    """A head within the process, and a model that reads for `always` ms a pass, `all_experts` more with all awake."""

    def seconds(rows: int) -> float:
        return 1e-3 * (always + all_experts * (1 - (1 - chosen / experts) ** rows) + 0.004 * rows)

    passes = [
        (requests, rows, seconds(rows)) for requests in (1, 4, 16, 64) for rows in _ROWS if 1 <= rows / requests <= 64
    ]
    form = ExpertForm(experts, chosen, 64, (True,) * 24, normalised=True)
    return Machine(passes, text=(0.1, 0.007), level=(0.1, 0.0009), host=(0.05, 0.003), experts=form)


QWEN3_30B_A3B = mixture(128, 8, always=0.57, all_experts=13.6)
"""One row takes 1.42 ms, 4 take 2.6 and 16 take 6.6 times as long."""
GPT_OSS_20B = mixture(32, 4, always=0.57, all_experts=2.4)
"""One row takes 0.87 ms, 4 take 1.8 and 16 take 3.1 times as long."""
MIXTURES = {"qwen3-30b-a3b": QWEN3_30B_A3B, "gpt-oss-20b": GPT_OSS_20B}


@pytest.mark.parametrize("chances", [TREE, POOR], ids=["tree", "poor"])
@pytest.mark.parametrize("running", [1, 4, 16, 64])
@pytest.mark.parametrize("machine", MIXTURES.values(), ids=MIXTURES)
def test_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, running: int, chances: tuple[float, ...]
) -> None:
    rounds = Rounds(monkeypatch, running, machine=machine)
    rounds.head.chances = chances
    rounds.run(40)
    assert rounds.share_of_plain(rounds.rounds(150)) > LEAST


@pytest.mark.parametrize("running", [1, 4, 16, 64])
@pytest.mark.parametrize("machine", MIXTURES.values(), ids=MIXTURES)
def test_the_default_is_near_the_best_fixed_chain(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, running: int
) -> None:
    rounds, best = Rounds(monkeypatch, running, machine=machine), machine.best_fixed(running)
    rounds.run(60)
    share = rounds.share_of_plain(rounds.rounds(150))
    assert share > 0.9 * best


def test_a_lone_request_is_not_drafted_for_where_its_nodes_wake_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of one brings 1.7 tokens for 1.76 times the time; 16 requests share what theirs wake."""
    rounds = Rounds(monkeypatch, 1, machine=QWEN3_30B_A3B)
    rounds.run(60)
    lone = sum(each.nodes for each in rounds.rounds(100)) / 100
    rounds.resize(16)
    rounds.run(60)
    shared = sum(each.nodes for each in rounds.rounds(100)) / 1600
    assert lone < 0.1
    assert shared > 1


@pytest.mark.parametrize(
    ("machine", "running", "counts", "gain"),
    [
        (GPT_OSS_20B, 1, (0.4, 1.0), 1.2),
        (GPT_OSS_20B, 1, (0.5, 0.5), 1.15),
        (QWEN3_30B_A3B, 4, (0.4, 1.0), 1.15),
        (QWEN3_30B_A3B, 16, (0.4, 1.0), 1.0),
        (QWEN3_30B_A3B, 4, (1.0, 0.3), 1.0),
        (GPT_OSS_20B, 1, (1.0, 1.0), 1.0),
    ],
)
def test_what_children_and_siblings_wake_is_drafted_by(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, running: int, counts: tuple[float, float], gain: float
) -> None:
    """Tokens a second over plain decoding's, as far as trees pay that wake less than others would; to be told how many
    experts are awake never loses any.
    """
    shares = []
    for told in (False, True):
        rounds = Rounds(monkeypatch, running, machine=replace(machine, counts=counts, told=told))
        rounds.head.chances = TREE
        rounds.run(60)
        shares.append(rounds.share_of_plain(rounds.rounds(150)))
    assert shares[1] > 0.98 * gain
    assert shares[1] > 0.98 * shares[0]
