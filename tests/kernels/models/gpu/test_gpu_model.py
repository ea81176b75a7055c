from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.gpu.batch import attention_tiles
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel, PassHandle
from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.ops.logprobs import logprobs_reference
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model

SIZES = {
    "max_running": 3, "max_nodes": 64, "step_nodes": 150, "prefill_chunk": 128, "num_pages": 40, "max_context": 256,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-tied": {},
    "llama-demo-heads": {"heads": 3, "kv_heads": 1, "head_dim": 128, "hidden_size": 384},
    "mistral-untied": {"family": "mistral", "tied": False, "heads": 4, "kv_heads": 2},
    "qwen2": {"family": "qwen2", "shards": 2},
    "qwen3": {"family": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 128},
}
CLOSE = 1e-2
"""Relative error between two ways to compute the same rows, which round differently in bfloat16."""


def load(folder: Path, *, device: str = "cpu", **options: Any) -> GpuModel:
    sizes = {name: options.pop(name) for name in list(options) if name in SIZES | {"page_size": 0}}
    model = GpuModel.load(folder, GpuLimits(**SIZES | sizes), device=device, progress=False, **options)
    model.kv.keys.fill_(torch.nan)
    model.kv.values.fill_(torch.nan)
    if device == "cuda":
        torch.cuda.synchronize()  # passes run on a stream of their own
    return model


@pytest.fixture
def model(tiny_model: Path) -> GpuModel:
    return load(tiny_model)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


def launch(model: GpuModel, spans: list[Span], **options: Any) -> PassHandle:
    for span in spans:
        model.set_pages(span.line, 0, span.pages)
    return model.launch(pass_of(model.limits, spans, **options))


def logits_of(model: GpuModel, spans: list[Span]) -> torch.Tensor:
    """Of every row."""
    return launch(model, spans, all_logits=True).logits.cpu().clone()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def walks(ticket: PassHandle) -> list[tuple[list[int], list[int]]]:
    """Accepted nodes and committed tokens of each deciding item."""
    return [(row[2 : 2 + row[0]], row[66 : 67 + row[0]]) for row in ticket.results().tolist()]


@pytest.mark.parametrize("name", FAMILIES)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / name, **FAMILIES[name])
    model = load(folder)
    tokens = random_tokens(90)
    pages = np.random.default_rng(1).permutation(40)[:6].tolist()
    parts, start = [], 0
    for end in (50, 51, 90):
        parts.append(logits_of(model, [Span(1, tokens[start:end], start, pages)]))
        start = end
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    assert relative_error(torch.cat(parts), expected) < 0.02


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> tuple[list[int], torch.Tensor]:
    """Tokens and the logits of all of them, in one pass."""
    tokens = random_tokens(110)
    return tokens, logits_of(load(tiny_model), [Span(0, tokens, 0, range(7))])


@pytest.mark.parametrize("page_size", [1, 7, 16, 64])
def test_chunks_and_pages_change_nothing(
    tiny_model: Path, reference: tuple[list[int], torch.Tensor], page_size: int
) -> None:
    tokens, expected = reference
    count = -(-len(tokens) // page_size)
    model = load(tiny_model, page_size=page_size, num_pages=count + 3)
    pages = np.random.default_rng(page_size).permutation(count + 3)[:count].tolist()
    parts, start = [], 0
    for end in (1, 2, 30, 65, 66, 110):
        parts.append(logits_of(model, [Span(2, tokens[start:end], start, pages)]))
        start = end
    assert relative_error(torch.cat(parts), expected) < CLOSE


def true_tree(tokens: list[int], prefix: int, depth: int) -> tuple[TokenTree, list[int]]:
    """A tree that hides the true continuation among other nodes, and the true nodes."""
    rng = np.random.default_rng(prefix)
    labels: list[int] = []
    parents: list[int] = []
    nodes: list[int] = []
    for step in range(depth):
        for _ in range(int(rng.integers(0, 3))):
            parents.append(int(rng.integers(-1, len(parents))) if parents else -1)
            labels.append(int(rng.integers(0, 512)))
        parents.append(nodes[-1] if nodes else -1)
        labels.append(tokens[prefix + step])
        nodes.append(len(parents) - 1)
    return TokenTree(tuple(labels), tuple(parents)), nodes


@pytest.mark.parametrize(("prefix", "depth"), [(1, 5), (62, 7), (64, 1), (70, 20)])
def test_tree_nodes_compute_what_plain_decoding_does(
    model: GpuModel, reference: tuple[list[int], torch.Tensor], prefix: int, depth: int
) -> None:
    """In one pass with a prompt of another request, which comes first."""
    tokens, expected = reference
    pages = list(range(8))[::-1]
    if prefix > 1:
        launch(model, [Span(0, tokens[: prefix - 1], 0, pages, decides=False)])
    tree, nodes = true_tree(tokens, prefix, depth)
    other = Span(1, tokens[:20], 0, [10, 11])
    logits = logits_of(model, [other, Span(0, [tokens[prefix - 1]], prefix - 1, pages, tree)])
    assert relative_error(logits[:20], expected[:20]) < CLOSE
    rows = [20, *(21 + node for node in nodes)]
    assert relative_error(logits[rows], expected[prefix - 1 : prefix + depth]) < CLOSE


def plain_greedy(model: GpuModel, line: int, tokens: list[int], pages: list[int], count: int) -> list[int]:
    """`count` tokens, each taken by the next pass from the device; results are asked for a pass later."""
    tickets = [launch(model, [Span(line, tokens, 0, pages)])]
    for position in range(len(tokens), len(tokens) + count - 1):
        tickets.append(launch(model, [Span(line, [-1], position, pages)]))
        assert tickets[-2].done()
    return [walks(ticket)[0][1][0] for ticket in tickets]


def test_decoding_takes_tokens_from_the_pass_before(model: GpuModel) -> None:
    prompt, pages = random_tokens(40), [3, 9, 1, 20]
    output = plain_greedy(model, 1, prompt, pages, 12)
    logits = logits_of(model, [Span(2, prompt + output, 0, [4, 5, 6, 7])])
    assert logits[39:51].argmax(-1).tolist() == output


def test_accepted_nodes_become_context(model: GpuModel) -> None:
    prompt = random_tokens(40)
    output = plain_greedy(model, 0, prompt, [0, 1, 2, 3, 4], 24)
    tree, nodes = true_tree(prompt + output, 41, 9)
    pages = [10, 11, 12, 13, 14]
    launch(model, [Span(1, prompt, 0, pages)])
    ticket = launch(model, [Span(1, [-1], 40, pages, tree)])
    assert walks(ticket) == [(nodes, output[1:11])]
    assert ticket.results()[0, 1] == 1
    for position in range(50, 63):
        ticket = launch(model, [Span(1, [-1], position, pages)])
        assert walks(ticket) == [([], [output[position - 39]])]


def test_a_prompt_may_end_in_a_tree(model: GpuModel) -> None:
    prompt = random_tokens(40)
    output = plain_greedy(model, 0, prompt, [0, 1, 2, 3], 8)
    tree, nodes = true_tree(prompt + output, 40, 6)
    spans = [
        Span(1, prompt, 0, [10, 11, 12], tree),
        Span(2, prompt[:20], 0, [15, 16], decides=False),
        Span(0, [output[-1]], 47, [0, 1, 2, 3]),
    ]
    first, second = walks(launch(model, spans))
    assert first == (nodes, output[:7])
    assert second[0] == [] and len(second[1]) == 1


def test_logits_live_through_one_launch(model: GpuModel) -> None:
    span = Span(0, random_tokens(30), 0, [0, 1])
    ticket = launch(model, [span])
    logits = ticket.logits.clone()
    other = launch(model, [dataclasses.replace(span, tokens=random_tokens(30, seed=1))])
    assert torch.equal(ticket.logits, logits) and not torch.equal(other.logits, logits)
    dropped = model.launch(dataclasses.replace(pass_of(model.limits, [span]), keep_logits=False))
    assert torch.equal(dropped.logits, logits)
    launch(model, [span])
    for gone in (ticket, dropped):
        with pytest.raises(ValueError, match="logits of this pass are gone"):
            gone.logits  # noqa: B018


def test_results_outlive_their_buffers(model: GpuModel) -> None:
    tickets = [launch(model, [Span(0, random_tokens(9, seed), 0, [0])]) for seed in range(7)]
    again = [launch(model, [Span(0, random_tokens(9, seed), 0, [0])]).results() for seed in range(7)]
    assert all(np.array_equal(ticket.results(), found) for ticket, found in zip(tickets, again, strict=True))
    assert len({int(found[0, 66]) for found in again}) > 1


def test_logprobs(model: GpuModel) -> None:
    ticket = launch(model, [Span(0, random_tokens(20), 0, [0, 1])], all_logits=True)
    indices, chosen = np.array([19, 0, 7], np.int32), np.array([5, 400, 5], np.int32)
    found = model.logprobs(ticket, indices, chosen, 4)
    expected = logprobs_reference(ticket.logits[indices].numpy(), chosen, 4)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours, theirs.numpy(), atol=1e-5)
    assert model.logprobs(ticket, indices, chosen, 0)[2].shape == (3, 0)


def decided(model: GpuModel, line: int, **params: Any) -> int:
    """The token after a fixed prompt."""
    tables = {name: params.pop(name) for name in ("prompt_ids", "output_ids", "bias", "end_ids") if name in params}
    model.set_line(line, pack_line(**params), **tables)
    return walks(launch(model, [Span(line, random_tokens(12), 0, [2 * line])]))[0][1][0]


def test_lines_say_how_to_sample(model: GpuModel) -> None:
    best = decided(model, 0)
    assert decided(model, 1, has_bias=True, bias=[(77, 100.0), (best, -5.0)]) == 77
    assert decided(model, 1, min_position=13, end_ids=[best]) != best
    assert decided(model, 1, min_position=12, end_ids=[best]) == best
    assert decided(model, 2, repetition=50.0, presence=60.0, prompt_ids=random_tokens(12), output_ids=[best]) != best
    assert decided(model, 1) == best
    drawn = {decided(model, 1, temperature=5.0, seed=seed) for seed in range(8)}
    assert len(drawn) > 4
    assert decided(model, 1, temperature=5.0, seed=3) == decided(model, 2, temperature=5.0, seed=3)


def test_penalties_count_what_passes_commit(model: GpuModel) -> None:
    """With a large penalty no token comes twice, and an older request's counts are forgotten."""
    for _ in range(2):
        model.set_line(0, pack_line(presence=100.0), prompt_ids=[], output_ids=[])
        output = plain_greedy(model, 0, random_tokens(5), [0, 1], 10)
        assert len(set(output)) == 10
        model.set_line(0, pack_line(presence=100.0), prompt_ids=[], output_ids=output)
        assert plain_greedy(model, 0, random_tokens(5), [0, 1], 1)[0] not in output


def test_long_page_tables_are_set_at_once(tiny_model: Path, reference: tuple[list[int], torch.Tensor]) -> None:
    """More pages than one pass can carry, and a line that changes twice before a pass."""
    tokens, expected = reference
    model = load(tiny_model, page_size=1, num_pages=512, max_context=512, prefill_chunk=128)
    pages = np.random.default_rng(0).permutation(512).tolist()
    model.set_pages(1, 0, pages[::-1])
    model.set_pages(1, 0, pages)
    logits = logits_of(model, [Span(1, tokens, 0, pages)])
    assert relative_error(logits, expected) < CLOSE
    with pytest.raises(ValueError, match="pages 510 to 513 of a line, which has 512"):
        model.set_pages(0, 510, [0, 0, 0])


def test_passes_beyond_the_limits_are_refused(model: GpuModel) -> None:
    with pytest.raises(ValueError, match="a pass of 240 rows, 240 logits, no trees is larger"):
        launch(model, [Span(0, random_tokens(240), 0, range(15))], all_logits=True)
    first = launch(model, [Span(0, random_tokens(20), 0, [0, 1])]).results()
    assert np.array_equal(launch(model, [Span(0, random_tokens(20), 0, [0, 1])]).results(), first)


def test_sizes_are_settled_at_start(tiny_model: Path) -> None:
    model = load(tiny_model, num_pages=0, max_context=0)
    assert model.limits.max_context == model.config.max_context == 512
    assert model.limits.num_pages == model.memory.num_pages >= 32
    assert model.kv_bytes_per_token() == 2 * 2 * 64 * 2
    assert model.first_scratch_slot == model.limits.num_pages * 16
    assert model.kv.keys.shape[2] == model.first_scratch_slot + 150
    with pytest.raises(ValueError, match="max_context is 513, the model's is 512"):
        load(tiny_model, max_context=513)
    too_many = r"out of device memory: .*16777216 KV pages of 128.* lower|num_pages is 16777216, at most"
    with pytest.raises(OutOfDeviceMemoryError, match=too_many):
        load(tiny_model, num_pages=2**24)
    with pytest.raises(ValueError, match="mode is 'slow'"):
        load(tiny_model, mode="slow")


def test_fast_mode_computes_about_the_same(tiny_model: Path, reference: tuple[list[int], torch.Tensor]) -> None:
    tokens, expected = reference
    model = load(tiny_model, mode="fast", device="cuda" if torch.cuda.is_available() else "cpu")
    assert model.mode == "fast"
    assert relative_error(logits_of(model, [Span(0, tokens, 0, range(7))]), expected) < 2 * CLOSE


def test_costs_are_measured_by_requests_and_rows(tiny_model: Path) -> None:
    model = load(tiny_model, max_nodes=4, step_nodes=5, max_context=40, num_pages=2, max_running=3)
    model.warm_up()
    costs = model.pass_costs()
    assert [each[:2] for each in costs] == [(1, 1), (1, 2), (1, 4), (3, 3), (3, 4), (3, 8)]
    assert all(seconds > 0 for _, _, seconds in costs)


@pytest.mark.parametrize("tiled_trees", [1, 100])
def test_kernels_agree_with_their_twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiled_trees: int) -> None:
    """A whole engine on the kernels, in Triton's interpreter where there is no GPU: trees in tiles, and in splits."""
    monkeypatch.setattr(attention_tiles, "TREE_PROGRAMS", tiled_trees)
    monkeypatch.setattr(attention_tiles, "PROGRAMS", 1)
    folder = make_tiny_model(tmp_path / "least", layers=1, vocab_size=272, hidden_size=64, intermediate_size=64)
    sizes = {"max_running": 2, "max_nodes": 4, "step_nodes": 3, "prefill_chunk": 64, "num_pages": 12}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs = load(folder, device=device, ops=kernels(), **sizes), load(folder, **sizes)
    tokens = [token % 272 for token in random_tokens(70)]
    pages, others = [0, 7, 3, 4, 5], [1, 2]

    def check(spans: list[Span]) -> list[tuple[list[int], list[int]]]:
        ticket, twin = launch(ours, spans), launch(theirs, spans)
        ours.wait()
        assert torch.isfinite(ticket.logits).all()
        assert relative_error(ticket.logits.cpu(), twin.logits) < CLOSE
        found = walks(ticket)
        deciding = [found[0][0][-1] + 1 if found[0][0] else 0, -1]
        assert [committed[-1] for _, committed in found] == ticket.logits.argmax(-1)[deciding].tolist()
        return found

    check([Span(0, tokens[:60], 0, pages), Span(1, tokens[:4], 0, others)])
    check([Span(0, tokens[60:65], 60, pages), Span(1, [9], 4, others)])
    tree = TokenTree((3, check([Span(0, [9], 65, pages), Span(1, [9], 5, others)])[0][1][0]), (-1, -1))
    spans = [Span(0, [9], 65, pages, tree), Span(1, [8], 6, others)]
    assert check(spans)[0][0] == [1]
    check([Span(0, [7], 67, pages), Span(1, [8], 7, others)])
