"""Heads in their published layouts through three real processes: they draft, and no token depends on them."""

from dataclasses import replace

import pytest

from benchmarks.exactness.cells import Count, EngineSetting
from support.ask import ask, jobs
from support.cluster import Cluster
from support.eagle_heads import EAGLE1, EAGLE3, Shape, write_head
from support.medusa_heads import LAYOUTS as MEDUSA
from support.medusa_heads import write_medusa
from support.mlp_speculators import LAYOUTS as SPECULATORS
from support.mlp_speculators import write_speculator
from support.mtp_heads import LAYOUTS as MTP
from support.mtp_heads import write_mtp

SHAPE = Shape(hidden=384, intermediate=256, heads=3, kv_heads=1, vocab=8192)
HEADS = {
    "eagle": EAGLE1["bias, as the key's absence says"],
    "eagle3": replace(EAGLE3["midlayer, offsets and mask"], draft_vocab=1024, head_dim=128),
}
FAMILIES = [*HEADS, "medusa", "mlp-speculator", "mtp"]


@pytest.fixture(scope="module")
def work():
    return [job for length in (5, 150) for job in jobs(2, tokens=32, length=length)]


@pytest.fixture(scope="module")
def reference(demo_model, work):
    with Cluster(demo_model, verify_args=EngineSetting(4096, 16, False, False).verify_args(512)) as cluster:
        return ask(cluster, work, concurrency=1)


SETTINGS = [EngineSetting(), pytest.param(EngineSetting(16, 16, True, False), marks=pytest.mark.slow)]


@pytest.mark.parametrize("engine", SETTINGS)
def test_tokens_are_the_references(engine, demo_model, work, reference, tmp_path):
    for name, layout in HEADS.items():
        write_head(tmp_path / name, layout, SHAPE, seed=1)
    write_medusa(tmp_path / "medusa", MEDUSA["safetensors"], hidden=SHAPE.hidden, vocab=SHAPE.vocab)
    speculator = SPECULATORS["tied, input scaled"]
    write_speculator(tmp_path / "mlp-speculator", speculator, width=SHAPE.hidden, vocab=SHAPE.vocab)
    write_mtp(demo_model, MTP["NextN, extracted"], tmp_path / "mtp", seed=1)
    heads = [f"{name}:{tmp_path / name}:target={demo_model}:topk=3:num_steps=3" for name in FAMILIES]
    draft = (*heads, "ngram", "hybrid:ngram+eagle3")
    arguments = (*engine.verify_args(256), "--draft-deadline-ms", "5000")
    names = [*FAMILIES, "hybrid", ""]
    with Cluster(demo_model, draft=draft, verify_args=arguments) as cluster:
        answers = iter(ask(cluster, [replace(job, proposer=name) for job in work for name in names]))
    counts = {name: Count() for name in names}
    for index, answer in enumerate(reference):
        for name in names:
            counts[name].add(f"{index}", next(answers), answer)
    assert sum(count.mismatches for count in counts.values()) == 0, counts
    assert all(counts[name].drafted > 50 for name in names if name), counts
