"""The sizes to which passes are padded: a CUDA graph has one shape."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from slipstream_kernels.models.gpu.batch.attention_tiles import fits_tiles, tiled_rows, tiled_trees
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.ranks.shard import Shard

_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_LEAST_PREFILL = 64
_FEW_LOGITS, _SOME_LOGITS = 16, 128


class Bucket(NamedTuple):
    """`rows` rows and `logits` of them with logits. Without `has_prefill` all rows decode.

    Passes of the bucket keep the states of all rows at `boundaries` (see `slipstream_kernels.models.capture_layers`).
    Where `tiles_only`, all rows lie in tiles: with trees those that decode in `tree_attention`'s, all others in
    `prefill_attention`'s. With `adapters` some rows may have a LoRA adapter.
    """

    rows: int
    logits: int
    has_trees: bool
    has_prefill: bool
    boundaries: tuple[int, ...] = ()
    tiles_only: bool = False
    adapters: bool = False

    @property
    def without_states(self) -> Bucket:
        """The bucket of passes of the same rows that keep no states, and know no adapters."""
        return self._replace(boundaries=(), adapters=False) if self.boundaries or self.adapters else self


class Buckets:
    """All buckets of a model and the choice among them.

    Where all rows decode, all may want logits; without trees a request has one row of them. Passes with a prefill are
    large, so that what trees take is little: they always have room for them, unless `plain_prefill` asks for buckets
    of those that have none. Buckets of tiles only are there, too, where the number is given: for passes of `tiled_rows`
    rows and more without trees and prefill, and for those of `tiled_trees` requests and more with trees. With trees and
    prefill they have room for all logits.
    """

    def __init__(
        self,
        limits: GpuLimits,
        *,
        plain_prefill: bool = False,
        tiled_rows: int | None = None,
        tiled_trees: int | None = None,
    ) -> None:
        self._plain = _sizes(_ROWS, limits.max_running)
        self._decode = _sizes(_ROWS, limits.max_decode_rows)
        self._has_trees = limits.scratch_slots > 0
        self._has_adapters = limits.max_adapters > 0
        self._plain_prefill = plain_prefill
        self._tiled = [rows for rows in self._plain if tiled_rows is not None and rows >= tiled_rows]
        self._tiled_trees = [rows for rows in self._decode if tiled_trees is not None and rows > tiled_trees]
        self._prefill = _prefill_sizes(limits.prefill_chunk, limits.max_decode_rows)
        self._plain_prefills = _prefill_sizes(limits.prefill_chunk, limits.max_running) if plain_prefill else []
        most = limits.max_decode_rows
        self._logits = sorted({0, min(_FEW_LOGITS, most), min(_SOME_LOGITS, most), most})

    @property
    def decode_rows(self) -> tuple[int, ...]:
        """Sizes of passes whose rows all decode, ascending; those of more rows than requests have trees."""
        return tuple(self._decode)

    def all(self) -> list[Bucket]:
        """Every bucket that `find` can return, and where there are adapters each with these, the largest first."""
        buckets = {Bucket(rows, rows, False, False) for rows in self._plain}
        buckets |= {Bucket(rows, rows, False, False, tiles_only=True) for rows in self._tiled}
        if self._has_trees:
            buckets |= {Bucket(rows, rows, True, False) for rows in self._decode if rows > 1}
            buckets |= {Bucket(rows, rows, True, False, tiles_only=True) for rows in self._tiled_trees}
        for drafted in {self._has_trees, self._has_trees and not self._plain_prefill}:
            for rows in self._prefills(drafted):
                buckets |= {Bucket(rows, min(logits, rows), drafted, True) for logits in self._logits}
        if self._tiled_trees:
            buckets |= {Bucket(rows, self._most_logits(rows), True, True, tiles_only=True) for rows in self._prefill}
        if self._has_adapters:
            buckets |= {bucket._replace(adapters=True) for bucket in buckets}
        return sorted(buckets, reverse=True)

    def find(self, rows: int, logits: int, *, has_trees: bool, has_prefill: bool, fits_tiles: bool = False) -> Bucket:
        """The smallest bucket that holds a pass. Raises ValueError where none does.

        `fits_tiles`: all rows that decode are best served as tiles.
        """
        drafted = has_trees or (has_prefill and self._has_trees and not self._plain_prefill)
        sizes = self._prefills(drafted) if has_prefill else self._decode if drafted else self._plain
        if rows > sizes[-1] or logits > self._logits[-1] or (has_trees and not self._has_trees):
            raise ValueError(
                f"a pass of {rows} rows, {logits} logits, {'with' if has_trees else 'no'} trees is larger than "
                f"{sizes[-1]} rows, {self._logits[-1]} logits, {'with' if self._has_trees else 'no'} trees"
            )
        padded = sizes[bisect_left(sizes, max(rows, 2) if has_trees else rows)]
        if not has_prefill:
            tiled = self._tiled_trees if has_trees else self._tiled
            return Bucket(padded, padded, has_trees, False, tiles_only=fits_tiles and padded in tiled)
        if has_trees and fits_tiles and self._tiled_trees:
            return Bucket(padded, self._most_logits(padded), True, True, tiles_only=True)
        wanted = self._logits[bisect_left(self._logits, logits)]
        return Bucket(padded, min(wanted, padded), drafted, True)

    def _most_logits(self, rows: int) -> int:
        return min(self._logits[-1], rows)

    def _prefills(self, drafted: bool) -> list[int]:
        return self._plain_prefills if self._plain_prefill and not drafted else self._prefill


def buckets_of(shard: Shard, limits: GpuLimits, *, plain: bool) -> Buckets:
    """A model's buckets. `plain`: attention of passes without trees is `PlainAttention`'s, which knows no tiles."""
    trees = tiled_trees(shard.kv_heads)
    if plain:
        return Buckets(limits, plain_prefill=True, tiled_trees=trees)
    return Buckets(limits, tiled_rows=tiled_rows(shard.kv_heads), tiled_trees=trees)


def bucket_of(buckets: Buckets, plan: PassPlan, shard: Shard) -> Bucket:
    """The bucket of a plan in order where no states are kept. Raises ValueError for a plan that fits none."""
    return buckets.find(
        plan.rows,
        len(plan.logit_rows),
        has_trees=plan.has_trees,
        has_prefill=len(plan.prefills) > 0,
        fits_tiles=fits_tiles(plan, shard.kv_heads),
    )


def _prefill_sizes(chunk: int, beside: int) -> list[int]:
    """Of passes with at most `chunk` rows of prompts and `beside` rows that decode."""
    sizes = [rows for rows in _ROWS if _LEAST_PREFILL <= rows < chunk]
    return sorted({*sizes, *(chunk + rows for rows in (0, *_sizes((16, 64, 256), beside)))})


def _sizes(candidates: tuple[int, ...], most: int) -> list[int]:
    """The candidates below `most`, and it."""
    return [size for size in candidates if size < most] + [most]
