"""Random passes of paged attention: the same tokens decoded, prefilled and hung in trees, and what must come out.

A token is an index into tables of random queries, keys and values, so that one token at one position can be laid out in
many ways. Whatever a pass does not own is NaN: unused slots, entries of partial states, outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.gpu import prefill_attention as prefill
from slipstream_kernels.ops.gpu import prefix_attention as prefix
from slipstream_kernels.ops.gpu import tail_attention as tail
from slipstream_kernels.ops.gpu import tree_attention as tree
from slipstream_kernels.ops.gpu import tree_leaves
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials, attention_partials
from slipstream_kernels.ops.gpu.position_splits import num_splits, own_block
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows, decode, encode
from slipstream_kernels.token_tree import MAX_ROWS

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vectors:
    """bfloat16 vectors of all tokens: q [tokens, heads, head_dim], k and v [kv_heads, tokens, head_dim]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    form: AttentionForm = FULL
    sinks: torch.Tensor | None = None
    """float32 [heads], of a form that has them"""

    @classmethod
    def random(
        cls,
        tokens: int,
        kv_heads: int,
        group: int,
        head_dim: int,
        seed: int,
        device: torch.device | str,
        form: AttentionForm = FULL,
    ) -> Vectors:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device).bfloat16()

        return cls(
            normal(tokens, kv_heads * group, head_dim) * 2,
            normal(kv_heads, tokens, head_dim),
            normal(kv_heads, tokens, head_dim),
            form,
            normal(kv_heads * group).float() * 4 if form.sinks else None,
        )

    def expected(self, sequence: Tokens) -> torch.Tensor:
        """float64 [heads, head_dim]: the last token's attention to the sequence."""
        form = self.form
        places = torch.from_numpy(sequence[form.first_seen(len(sequence) - 1) :]).to(self.q.device)
        kv_heads, _, head_dim = self.k.shape
        q = self.q[int(sequence[-1])].double().view(kv_heads, -1, head_dim)
        scores = torch.einsum("kgd,kpd->kgp", q, self.k[:, places].double()) * form.scale_of(head_dim)
        scores = form.cap * torch.tanh(scores / form.cap) if form.cap else scores
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.double().view(kv_heads, -1, 1)], -1)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = (weights / weights.sum(-1, keepdim=True))[..., : len(places)]
        sums = torch.einsum("kgp,kpd->kgd", weights, self.v[:, places].double())
        return sums.reshape(-1, head_dim)


@dataclass(frozen=True, slots=True)
class Pass:
    """Tensors of one pass, as the ops take them."""

    q: torch.Tensor
    keys: KVRows
    values: KVRows
    page_table: torch.Tensor
    page_size: int
    lines: torch.Tensor
    prefix_lengths: torch.Tensor
    paths: torch.Tensor
    depths: torch.Tensor
    write_slots: torch.Tensor
    decode_rows: torch.Tensor
    spans: tuple[tuple[int, int, int, int], ...]
    """(first row, rows, line, prefix length) of decode rows and trees"""
    chunks: tuple[tuple[int, int, int, int], ...]
    """(first row, rows, line, first position) of prefills"""
    form: AttentionForm
    sinks: torch.Tensor | None = None

    def in_codes(self, fixed: tuple[float, float] = (0.0, 0.0)) -> tuple[Pass, Pass]:
        """The pass over codes of its bfloat16 keys and values, and over the numbers for which these stand."""
        coded, plain = [], []
        for rows, scale in zip(self.bfloat16, fixed, strict=True):
            codes, scales = encode(rows, scale)
            coded.append(Fp8Rows(codes, scales, scale))
            plain.append(decode(codes, scales))
        return (
            replace(self, keys=coded[0], values=coded[1]),
            replace(self, keys=plain[0], values=plain[1]),
        )

    @property
    def bfloat16(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a pass that is not in codes."""
        assert isinstance(self.keys, torch.Tensor)
        assert isinstance(self.values, torch.Tensor)
        return self.keys, self.values

    @property
    def group(self) -> int:
        return self.q.shape[1] // len(self.keys)

    def segments(self, columns: int, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Segments and item offsets for `prefix_attention`, with `padding` more of no rows."""
        most = columns // self.group
        cut = [
            (first + start, min(most, rows - start), line, length)
            for first, rows, line, length in self.spans
            for start in range(0, rows, most)
        ]
        items = [num_splits(own_block(length)) for *_, length in cut] + [0] * padding
        table = np.array([*cut, *[(0, 0, 0, 0)] * padding], np.int32).reshape(-1, 4)
        offsets = np.concatenate([[0], np.cumsum(items)]).astype(np.int32)
        return self._on_device(table), self._on_device(offsets)

    def tiles(self, columns: int, padding: int = 0) -> torch.Tensor:
        """Tiles for `prefill_attention`, heavy ones first, with `padding` more of no rows."""
        cut = [tile for chunk in self.chunks for tile in prefill.prefill_tiles(*chunk, self.group, columns)]
        cut.sort(key=lambda tile: -tile[3])
        return self._on_device(np.array([*cut, *[(0, 0, 0, 0)] * padding], np.int32).reshape(-1, 4))

    def partials(self) -> AttentionPartials:
        """States full of NaN, one split larger than the longest context asks for."""
        rows, heads, head_dim = self.q.shape
        most = max((num_splits(length) for *_, length in self.spans), default=0) + 1
        partials = attention_partials(rows, heads, most, head_dim, self.q.device)
        for tensor in (partials.m, partials.l, partials.o):
            tensor.fill_(torch.nan)
        return partials

    def leaves(self, columns: int) -> torch.Tensor:
        """Leaves for `tree_attention`; rows of no tree are their own."""
        roots, parents = np.arange(len(self.q), dtype=np.int32), np.full(len(self.q), -2, np.int32)
        paths, depths = self.paths.cpu(), self.depths.cpu()
        for first, rows, *_ in self.spans:
            for row in range(first + 1, first + rows):
                roots[row], depth = first, int(depths[row])
                parents[row] = int(paths[row, depth - 2]) - first - 1 if depth > 1 else -1
        leaves = torch.full_like(self.depths, -9)
        segment_rows = columns // self.group
        tree_leaves.tree_leaves(self._on_device(parents), self._on_device(roots), leaves, segment_rows=segment_rows)
        return leaves

    def attend_in_tiles(self, *, columns: int, twins: bool = False, padding: int = 0) -> torch.Tensor:
        """As `attend`, of decode rows and trees alone: a tile for each segment."""
        out = torch.full_like(self.q, torch.nan)
        run = tree.tree_attention_reference if twins else tree.tree_attention
        run(
            self.q, self.keys, self.values, self.page_table, self.page_size, self.segments(columns, padding)[0],
            self.paths, self.depths, self.leaves(columns), self.write_slots, out, columns=columns, form=self.form,
            sinks=self.sinks,
        )  # fmt: skip
        return out

    def attend(
        self, *, columns: int, prefill_columns: int = prefill.PREFILL_COLUMNS, twins: bool = False, padding: int = 0
    ) -> torch.Tensor:
        """The pass's attention by the kernels, or by their twins, through outputs full of NaN."""
        out = torch.full_like(self.q, torch.nan)
        kv = (self.q, self.keys, self.values, self.page_table, self.page_size)
        if self.spans:
            # The second kernel reads before it waits for the first: nothing may be launched between them.
            rows = torch.cat([self.decode_rows, self.decode_rows.new_full((padding,), -1)])
            segments, partials = self.segments(columns, padding), self.partials()
            run = prefix.prefix_attention_reference if twins else prefix.prefix_attention
            last = tail.tail_attention_reference if twins else tail.tail_attention
            run(*kv, *segments, partials, columns=columns, form=self.form, depths=self.depths)
            last(
                *kv, self.lines, self.prefix_lengths, self.paths, self.depths, self.write_slots, rows, partials, out,
                form=self.form, sinks=self.sinks,
            )  # fmt: skip
        if self.chunks:
            whole = prefill.prefill_attention_reference if twins else prefill.prefill_attention
            tiles = self.tiles(prefill_columns, padding)
            whole(*kv, tiles, out, columns=prefill_columns, form=self.form, sinks=self.sinks)
        return out

    def _on_device(self, table: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(table).to(self.q.device)


@dataclass
class Scene:
    """Builds a pass request by request; every method returns the first row of what it added."""

    vectors: Vectors
    page_size: int
    seed: int = 0
    sequences: list[Tokens] = field(default_factory=list)
    """By row: the tokens it attends to, its own last."""
    _lines: list[list[int]] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _places: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _tokens: list[Tokens] = field(default_factory=list)
    _rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    _paths: dict[int, list[int]] = field(default_factory=dict)
    _spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    _chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _pages: int = 0

    def decode(self, sequence: Tokens, prefix_of: int | None = None) -> int:
        """The last token of a sequence as a decode row; full pages that line `prefix_of` has too are shared."""
        line = self._commit(sequence, prefix_of)
        row = self._row(sequence, line, len(sequence), self._slot(line, len(sequence) - 1))
        self._spans.append((row, 1, line, len(sequence)))
        return row

    def prefill(self, sequence: Tokens, first: int, prefix_of: int | None = None) -> int:
        """The tokens of a sequence from position `first` on as prefill rows."""
        line = self._commit(sequence, prefix_of)
        rows = [self._row(sequence[: i + 1], line, i + 1, self._slot(line, i)) for i in range(first, len(sequence))]
        self._chunks.append((rows[0], len(rows), line, first))
        return rows[0]

    def tree(self, sequence: Tokens, parents: Sequence[int], nodes: Tokens) -> int:
        """The last token as a tree's root and `nodes` below it, each in a page of scratch of its own."""
        root = self.decode(sequence)
        first, _, line, base = self._spans.pop()
        for node, parent in enumerate(parents):
            slot = self._pages * self.page_size
            self._pages += 1
            self._put(np.array([slot]), nodes[node : node + 1])
            path = [*(self._paths[root + 1 + parent] if parent >= 0 else []), root + 1 + node]
            own = np.concatenate([sequence, nodes[np.array(path) - root - 1]])
            self._paths[self._row(own, line, base, slot)] = path
        self._spans.append((first, 1 + len(parents), line, base))
        return root

    def line_of(self, row: int) -> int:
        return self._rows[row][0]

    def build(self, padding: int = 0) -> Pass:
        """The pass, its pages in random order, with `padding` more rows that write nothing."""
        device = self.vectors.q.device
        order = np.random.default_rng(self.seed).permutation(self._pages)

        def moved(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return order[slots // self.page_size] * self.page_size + slots % self.page_size

        places = torch.from_numpy(moved(np.concatenate(self._places))).to(device)
        tokens = torch.from_numpy(np.concatenate(self._tokens)).to(device)
        kv_heads, _, head_dim = self.vectors.k.shape
        cache = torch.full((2, kv_heads, self._pages * self.page_size, head_dim), torch.nan, device=device).bfloat16()
        cache[0, :, places] = self.vectors.k[:, tokens]
        cache[1, :, places] = self.vectors.v[:, tokens]

        def column(values: Sequence[int], blank: int) -> torch.Tensor:
            return torch.tensor([*values, *[blank] * padding], dtype=torch.int32, device=device)

        widest = max(len(line) for line in self._lines)
        table = np.full((len(self._lines), widest + 3), 2**30, np.int32)
        for line, pages in enumerate(self._lines):
            table[line, : len(pages)] = order[pages]
        paths = np.full((len(self._rows) + padding, MAX_ROWS), 2**30, np.int32)
        for row, path in self._paths.items():
            paths[row, : len(path)] = path
        own = torch.tensor([int(sequence[-1]) for sequence in self.sequences], device=device)
        q = torch.cat([self.vectors.q[own], torch.full((padding, *self.vectors.q.shape[1:]), torch.nan).to(own.device)])
        slots = moved(np.array([slot for *_, slot in self._rows]))
        return Pass(
            q.bfloat16(), cache[0], cache[1], torch.from_numpy(table).to(device), self.page_size,
            lines=column([line for line, *_ in self._rows], 0),
            prefix_lengths=column([length for _, length, *_ in self._rows], 0),
            paths=torch.from_numpy(paths).to(device),
            depths=column([depth for _, _, depth, _ in self._rows], 0),
            write_slots=column(slots.tolist(), -1),
            decode_rows=column([first + i for first, rows, *_ in self._spans for i in range(rows)], -1),
            spans=tuple(self._spans),
            chunks=tuple(self._chunks),
            form=self.vectors.form, sinks=self.vectors.sinks,
        )  # fmt: skip

    def _commit(self, sequence: Tokens, prefix_of: int | None) -> int:
        """A new line of the page table that holds the sequence."""
        shared: list[int] = []
        if prefix_of is not None:
            shared = self._lines[prefix_of][: min(len(sequence), self._lengths[prefix_of]) // self.page_size]
        needed = -(-len(sequence) // self.page_size) - len(shared)
        line = [*shared, *range(self._pages, self._pages + needed)]
        self._pages += needed
        positions = np.arange(len(shared) * self.page_size, len(sequence))
        if len(positions):
            pages = np.array(line)[positions // self.page_size]
            self._put(pages * self.page_size + positions % self.page_size, sequence[positions])
        self._lines.append(line)
        self._lengths.append(len(sequence))
        return len(self._lines) - 1

    def _put(self, slots: npt.NDArray[np.int64], tokens: Tokens) -> None:
        self._places.append(slots)
        self._tokens.append(tokens)

    def _slot(self, line: int, position: int) -> int:
        return self._lines[line][position // self.page_size] * self.page_size + position % self.page_size

    def _row(self, sequence: Tokens, line: int, prefix_length: int, slot: int) -> int:
        depth = len(sequence) - prefix_length
        self.sequences.append(sequence)
        self._rows.append((line, prefix_length, depth, slot))
        return len(self._rows) - 1


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||; NaN where `out` has one."""
    return float((out.double() - expected).norm() / expected.norm())
