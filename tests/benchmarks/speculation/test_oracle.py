import pytest

from benchmarks.lib.continuations import continuation_key, write_continuations
from benchmarks.speculation.acceptance_profile import OraclePlan, Profile
from benchmarks.speculation.oracle import create
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, Target
from draft_service.proposers.registry import ProposerSpec as Spec
from draft_service.proposers.registry import find_factory

PROMPT = (4, 5, 6, 7, 8, 9) * 3
TRUTH = (4, 5, 6, 7, 8, 9) * 7
KEY = continuation_key(PROMPT, 0.0, 0)
NGRAM = "ngram:num_draft_tokens=8:num_steps=4"


@pytest.fixture
def plan(tmp_path):
    """Right in three of four cases about the one text."""
    write_continuations(tmp_path / "said.json", {KEY: TRUTH})
    OraclePlan(0.75, str(tmp_path / "said.json")).write(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def oracle(plan):
    spec = Spec.parse(f"tree=benchmarks.speculation.oracle:create:{plan}:2:{NGRAM}")
    proposer = find_factory(spec)(ProposerOptions(spec.name, spec.argument))
    proposer.bind(Target(vocab_size=1000, tokenizer_fingerprint="", max_context=512))
    return proposer


def opened(proposer, session=1, output=()):
    proposer.open(session, Opening([*PROMPT, *output], len(PROMPT), sampling=Sampling(temperature=0.0)))


def test_trees_have_as_many_nodes_as_the_others_and_the_chances_of_the_plan(oracle):
    inner = find_factory(Spec.parse(NGRAM))(ProposerOptions("ngram", NGRAM.partition(":")[2]))
    inner.bind(Target(vocab_size=1000, tokenizer_fingerprint="", max_context=512))
    for each in (oracle, inner):
        opened(each)
    for rows in (3, 5):
        (own,), (other,) = (each.propose([DraftRequest(1, rows, 4)]) for each in (oracle, inner))
        assert len(own) == len(other) > 0
        own.validate(vocab_size=1000, max_nodes=rows - 1, max_depth=4)
        assert own.log_probs[0] == pytest.approx(-0.2877, abs=1e-3)
        assert max(own.parents.count(parent) for parent in own.parents) <= 2
    assert (oracle.max_nodes, oracle.max_depth, oracle.name) == (inner.max_nodes, inner.max_depth, "tree")


def test_it_is_right_where_the_text_says_at_every_step(oracle):
    opened(oracle)
    ranks = Profile(0.75).ranks(KEY, len(TRUTH))
    at = right = 0
    while at + 5 < len(TRUTH):
        (tree,) = oracle.propose([DraftRequest(1, 5, 4)])
        truth = TRUTH[at : at + 5]
        _, decided = tree.walk(truth[0], [truth[depth] for depth in tree.depths])
        assert (len(decided) > 1) == (ranks[at] < len(tree.children(-1)))
        right += len(decided) - 1
        oracle.commit(1, decided)
        at += len(decided)
    assert 0 < right < at


def test_a_session_that_is_taken_up_goes_on_where_it_stood(oracle):
    opened(oracle, 1)
    oracle.commit(1, TRUTH[:3])
    opened(oracle, 2, TRUTH[:3])
    first, second = (oracle.propose([DraftRequest(session, 5, 4)])[0] for session in (1, 2))
    assert first == second
    oracle.close(1)
    oracle.close(2)


def test_texts_that_are_not_recorded_are_never_guessed(oracle):
    oracle.open(3, Opening([*PROMPT, 4], len(PROMPT) + 1, sampling=Sampling(temperature=0.0)))
    (tree,) = oracle.propose([DraftRequest(3, 5, 4)])
    assert not set(tree.token_ids) & set(TRUTH)


def test_the_argument_names_another_proposer(plan):
    made = create(ProposerOptions("chain", f"{plan}:1:ngram:num_draft_tokens=6"))
    assert made.max_nodes == 6
