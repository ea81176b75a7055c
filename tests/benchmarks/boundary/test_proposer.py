import pytest
import torch

from benchmarks.boundary.plan import DraftPlan, DraftReport
from benchmarks.boundary.proposer import BoundaryProposer
from benchmarks.boundary.reader import DeviceReader
from benchmarks.lib.continuations import continuation_key, write_continuations
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, Target
from slipstream_kernels.token_tree import MAX_ROWS

PROMPT = (5, 6, 7)
TRUTH = tuple(range(20, 40))
GREEDY = Sampling(temperature=0.0)


@pytest.fixture
def make(tmp_path):
    def made(**changes):
        continuations = tmp_path / "known.json"
        write_continuations(continuations, {continuation_key(PROMPT, 0.0, 0): TRUTH})
        values = {"size": 1 << 16, "depth": 4, "rows": 9, "right": 3, "boundaries": (), "hidden_size": 8}
        plan = DraftPlan(
            **{**values, "continuations": str(continuations), "report": str(tmp_path / "report.json")} | changes
        )
        proposer = BoundaryProposer(ProposerOptions("oracle"), plan)
        proposer.bind(Target(100, "", 512, 8, 4))
        return proposer

    return made


def matched(tree, at):
    """How far a target that says TRUTH goes along with a tree."""
    node, count = -1, 0
    while True:
        found = [child for child in tree.children(node) if tree.token_ids[child] == TRUTH[at + count]]
        if not found:
            return count
        assert len(found) == 1
        node, count = found[0], count + 1


@pytest.mark.parametrize("right", [0, 1, 3, 4])
def test_trees_are_right_to_the_level_that_was_asked_for(make, right):
    proposer = make(right=right)
    proposer.open(1, Opening([*PROMPT, *TRUTH[:2]], len(PROMPT), GREEDY))
    at = 2
    for tokens in (TRUTH[2:6], TRUTH[6:7]):
        (tree,) = proposer.propose([DraftRequest(1, MAX_ROWS, 63)])
        tree.validate(vocab_size=100, max_nodes=8, max_depth=4)
        assert (len(tree), tree.depth) == (8, 4)
        assert matched(tree, at) == right
        proposer.commit(1, tokens)
        at += len(tokens)


def test_a_tree_keeps_to_what_the_state_wants(make):
    proposer = make()
    proposer.open(1, Opening(PROMPT, len(PROMPT), GREEDY))
    (tree,) = proposer.propose([DraftRequest(1, 3, 1)])
    assert (len(tree), tree.depth) == (2, 1)


def test_what_was_done_is_reported(make, tmp_path):
    proposer = make(boundaries=(1, 2))
    proposer.open(1, Opening(PROMPT, len(PROMPT), GREEDY))
    proposer.take_features(1, 0, torch.ones(2, 16, dtype=torch.bfloat16))
    proposer.propose([DraftRequest(1, 4, 4)])
    proposer.shut_down()
    report = DraftReport.read(tmp_path / "report.json")
    ((begun, ended, on_gpu),) = report.trees
    assert 0 < begun < ended
    assert (on_gpu, report.rows, report.on_device) == (0.0, 2, 0)
    assert report.size == pytest.approx(1 << 16, rel=0.3)


def test_a_pass_reads_its_share_and_the_newest_states():
    reader = DeviceReader(1 << 20, 5, "cpu", columns=16)
    assert reader.nbytes == pytest.approx(1 << 20, rel=0.01)
    reader.take(torch.arange(48, dtype=torch.bfloat16).view(3, 16))
    assert reader.read(5) == 0.0
    assert reader.read(1) == 0.0


@pytest.mark.gpu
def test_the_bytes_are_really_read():
    reader = DeviceReader(1_000_000_000, 5, "cuda", columns=3 * 4096)
    reader.take(torch.ones(3, 3 * 4096, dtype=torch.bfloat16))
    reader.take(torch.ones(3, 3 * 4096, dtype=torch.bfloat16, device="cuda"))
    seconds = min(reader.read(5) for _ in range(10))
    assert reader.nbytes / seconds < 6e12  # no GPU of today reads faster
    assert min(reader.read(1) for _ in range(10)) < seconds
