"""Weights drawn into the L2 cache ahead of their use.

Weights never change while a pass runs, so a program may ask for them before `wait_for_previous`, while the kernels in
front of it still run. Asking changes no value. Where kernels do not overlap this does nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import _DEPENDENT

_OVERLAP = tl.constexpr(_DEPENDENT.value)
_LINE = tl.constexpr(64)
"""Columns of bfloat16 that one request brings."""


@triton.jit
def prefetch_rows(
    rows_at: tl.tensor, own: tl.tensor, ahead: tl.tensor, inputs: tl.tensor, LINE: tl.constexpr = _LINE
) -> None:
    """Ask for the first `ahead` columns (of 512 bytes or a multiple), up to `inputs`, of each of the rows `own`.

    `rows_at` points to the rows' first columns, LINE of which have 128 bytes.
    """
    if _OVERLAP:
        for start in range(0, ahead, 4 * LINE):
            columns = start + tl.arange(0, 4)[None, :] * LINE
            wanted = own[:, None] & (columns < inputs)
            tl.inline_asm_elementwise(
                """{
                .reg .pred some;
                setp.ne.s32 some, $2, 0;
                @some prefetch.global.L2 [$1];
                mov.u32 $0, 0;
                }""",
                "=r,l,r",
                [(rows_at[:, None] + columns).to(tl.int64, bitcast=True), wanted.to(tl.int32)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
