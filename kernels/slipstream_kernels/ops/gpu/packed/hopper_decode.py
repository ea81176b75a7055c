"""Codes decoded in registers to the first operand of Hopper's matrix instructions, by as few instructions as there are.

Two words beside one another hold, at each place, two columns of bfloat16 beside one another: one register. The results
are those of `fragments`: int4 codes less their zero points are exact in bfloat16 too, and a product of bfloat16 with a
scale that bfloat16 has is the exact product rounded once.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


def _of_int4(product: str) -> str:
    """Asm for registers $0 to $7 of words $8 and $9: `product` makes `out` of exact code - zero in both halves of t."""
    lines = [
        "{ .reg .b32 low, high, t, u, mask, magic; .reg .f32 a, b;",
        "mov.b32 mask, 0x000F000F; mov.b32 magic, 0x43004300;",  # a half byte in the last bits of 128
        "prmt.b32 low, $8, $9, 0x5410; prmt.b32 high, $8, $9, 0x7632;",
    ]
    for place in range(8):
        word, shift = ("low", "high")[place // 4], 4 * (place % 4)
        if shift:
            lines.append(f"shr.u32 t, {word}, {shift}; lop3.b32 t, t, mask, magic, 0xEA;")
        else:
            lines.append(f"lop3.b32 t, {word}, mask, magic, 0xEA;")
        lines.append("sub.bf16x2 t, t, $12;" + product.replace("out", f"${place}"))
    return "\n".join([*lines, "}"])


def _of_e2m1(is_raised: bool) -> str:
    """Asm for registers $0 to $7 of words $8 and $9, whose scales are 2 to the lower two bytes of $10 less 127.

    The bits of e2m1 at the place of bfloat16's exponent and fraction are the number times 2^-126, also where it is
    below 1. A product with 2^126 is exact, that with the scale too, or rounded once where bfloat16 has no such number;
    where `is_raised` the bytes are 126 greater, and one product is both.
    """
    raised = "" if is_raised else "fma.rn.bf16x2 t, t, raise, zero;"
    lines = [
        "{ .reg .b32 low, high, t, u, raise, zero, first, second;",
        "mov.b32 raise, 0x7E807E80; mov.b32 zero, 0x80008000;",
        "prmt.b32 low, $8, $9, 0x5410; prmt.b32 high, $8, $9, 0x7632;",
    ]
    for name, byte in ("first", "0x4040"), ("second", "0x4141"):
        lines.append(f"prmt.b32 {name}, $10, 0, {byte}; shl.b32 {name}, {name}, 7;")
    for place in range(8):
        word, at = ("low", "high")[place // 4], 4 * (place % 4)
        to_size = f"shl.b32 t, {word}, {6 - at};" if at < 6 else f"shr.u32 t, {word}, {at - 6};"
        lines.append(
            f"{to_size} and.b32 t, t, 0x01C001C0; shl.b32 u, {word}, {12 - at}; lop3.b32 t, u, 0x80008000, t, 0xEA;"
            f"{raised} fma.rn.bf16x2 ${place}, t, {('first', 'second')[place // 4]}, zero;"
        )
    return "\n".join([*lines, "}"])


def _of_bytes(lines: str, values: str) -> str:
    """Asm for registers $0 to $3: `values` makes float32 a and b of place `{place}`, which are multiplied by $6."""
    product = "mul.f32 a, a, $6; mul.f32 b, b, $6; cvt.rn.bf16x2.f32 out, b, a;"
    places = [
        values.format(place=place, half="hk"[place % 2], order=("0x5140", "0x7362")[place // 2])
        + product.replace("out", f"${place}")
        for place in range(4)
    ]
    return "\n".join([lines, *places, "}"])


_INT4_PAIRED = gl.constexpr(_of_int4("mul.bf16x2 out, t, $10;"))
_INT4 = gl.constexpr(
    _of_int4(
        "shl.b32 u, t, 16; mov.b32 a, u; and.b32 u, t, 0xFFFF0000; mov.b32 b, u;"
        "mul.f32 a, a, $10; mul.f32 b, b, $10; cvt.rn.bf16x2.f32 out, b, a;"
    )
)
_E2M1 = gl.constexpr(_of_e2m1(is_raised=False))
_E2M1_RAISED = gl.constexpr(_of_e2m1(is_raised=True))
_INT8 = gl.constexpr(
    _of_bytes(
        "{ .reg .b32 u, magic; .reg .f32 a, b; mov.b32 magic, 0x4B000000;",  # a byte in the last bits of 2^23
        "prmt.b32 u, $4, magic, 0x765{place}; mov.b32 a, u; sub.f32 a, a, $8;"
        "prmt.b32 u, $5, magic, 0x765{place}; mov.b32 b, u; sub.f32 b, b, $8;",
    )
)
_E4M3 = gl.constexpr(
    _of_bytes(
        "{ .reg .b32 p, f; .reg .b16 h, k, y, z; .reg .f32 a, b;",
        "prmt.b32 p, $4, $5, {order}; mov.b32 {{h, k}}, p; cvt.rn.f16x2.e4m3x2 f, {half};"
        "mov.b32 {{y, z}}, f; cvt.f32.f16 a, y; cvt.f32.f16 b, z;",
    )
)


@gluon.jit
def decoded_operand(
    words: gl.tensor,
    factors: gl.tensor,
    points: gl.tensor,
    NUMBER: gl.constexpr,
    PAIRED: gl.constexpr,
    WARPS: gl.constexpr,
    HALVES: gl.constexpr,
    CHUNKS: gl.constexpr,
    OPERAND: gl.constexpr,
) -> Any:
    """bfloat16 [16 WARPS, columns] in the layout OPERAND of int32 words [HALVES * CHUNKS * WARPS * 128].

    Words lie by half, chunk and warp: of warp w and half h rows 16 w + 8 h onwards. Where HALVES is 1, the other rows
    are zero. factors: float32 scales of the words, or int32 where PAIRED. points: of int4 (128 + zero point) in both
    halves of int32, of int8 2^23 + zero point. Of e2m1 factors are exponents, where PAIRED 126 greater: see
    `fragments.decoded_tile`.
    """
    if NUMBER == "int4" or NUMBER == "e2m1":
        if NUMBER == "e2m1":
            place = gl.arange(0, HALVES * CHUNKS * WARPS * 128, words.type.layout)
            factors = factors >> (place % 4 // 2 * 16)
        a, b, c, d, e, f, g, h = gl.inline_asm_elementwise(
            (_E2M1_RAISED if PAIRED else _E2M1) if NUMBER == "e2m1" else _INT4_PAIRED if PAIRED else _INT4,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r",
            [words, factors, points],
            dtype=(gl.bfloat16,) * 8,
            is_pure=True,
            pack=2,
        )
        low = gl.join(gl.join(a, e), gl.join(c, g))
        high = gl.join(gl.join(b, f), gl.join(d, h))
        tile = gl.reshape(gl.join(low, high), (HALVES, CHUNKS, WARPS, 8, 4, 2, 2, 4, 2))
    else:
        a, b, c, d = gl.inline_asm_elementwise(
            _E4M3 if NUMBER == "e4m3" else _INT8,
            "=&r,=&r,=&r,=&r,r,r,r,r,r,r",
            [words, factors, points],
            dtype=(gl.bfloat16,) * 4,
            is_pure=True,
            pack=2,
        )
        tile = gl.reshape(gl.join(gl.join(a, c), gl.join(b, d)), (HALVES, CHUNKS, WARPS, 8, 4, 2, 2, 2, 2))
    columns: gl.constexpr = CHUNKS * (128 if NUMBER == "int4" or NUMBER == "e2m1" else 64)
    # (half, chunk, warp, row, c, p, e, s, h) to (warp, half, row; chunk, p, s, h, c, e)
    tile = gl.reshape(gl.permute(tile, (2, 0, 3, 1, 5, 7, 8, 4, 6)), (8 * WARPS * HALVES, columns))
    if HALVES == 1:
        tile = gl.reshape(gl.join(tile, gl.zeros_like(tile)), (WARPS, 8, columns, 2))
        tile = gl.reshape(gl.permute(tile, (0, 3, 1, 2)), (16 * WARPS, columns))
    return gl.convert_layout(tile, OPERAND, assert_trivial=True)
