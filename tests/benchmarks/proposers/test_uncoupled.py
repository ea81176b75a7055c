from __future__ import annotations

from draft_service.proposers.base import DraftRequest, Opening, Sampling, Target
from draft_service.proposers.registry import ProposerSpec, load_proposers

PROMPT = [1, 17, 23, 99, 4]


def test_it_drafts_as_for_a_greedy_request_whatever_the_seed(tiny_draft_model) -> None:
    model = f"draft-model:{tiny_draft_model}:topk=3:num_draft_tokens=12"
    specs = [ProposerSpec.parse(spec) for spec in (model, f"greedy=benchmarks.proposers.uncoupled:create:{model}")]
    coupled, greedy = load_proposers(specs, threads=1)
    target = Target(512, coupled.tokenizer_fingerprint, 4096)
    trees = {}
    for proposer in (coupled, greedy):
        proposer.bind(target)
        for session, sampling in enumerate((Sampling(temperature=0.0), *(Sampling(seed=s) for s in (1, 2))), start=1):
            proposer.open(session, Opening(PROMPT, len(PROMPT), sampling))
            proposer.commit(session, [5])
            (trees[proposer.name, session],) = proposer.propose([DraftRequest(session, 12, 4)])
            proposer.close(session)
    assert trees["greedy", 1] == trees["greedy", 2] == trees["greedy", 3] == trees["draft-model", 1]
    assert trees["draft-model", 2] != trees["draft-model", 3]
    assert (greedy.max_nodes, greedy.max_depth, greedy.vocab_size) == (12, 4, coupled.vocab_size)
