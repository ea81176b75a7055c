"""What kernels need from LLVM beyond numba: atomics, typed views of addresses, vectors, fused multiply-add.

Vectors are 16 floats wide; LLVM splits them where registers are narrower. No result depends on that width:
every sum below has its own chain of operations in an order fixed by the source.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

LANES = 16

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
VECTOR = ir.VectorType(F32, LANES)


def _declare(builder: Any, name: str, result: Any, parameters: list[Any]) -> Any:
    declared = builder.module.globals.get(name)
    return declared or ir.Function(builder.module, ir.FunctionType(result, parameters), name)


def call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """What LLVM's intrinsic of a name gives."""
    return builder.call(_declare(builder, name, result, [each.type for each in arguments]), arguments)


def define(signature: Any, emit: Callable[..., Any], parameters: int) -> Callable[..., Any]:
    """An intrinsic of fixed signature; `emit(builder, values)` writes its code and returns the result, if any."""

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        result = emit(builder, values)
        return context.get_dummy_value() if result is None else result

    # Numba counts the typer's parameters, so there is one typer for each number of them.
    typers: dict[int, Callable[..., Any]] = {
        0: lambda context: (signature, codegen),
        1: lambda context, a: (signature, codegen),
        2: lambda context, a, b: (signature, codegen),
        3: lambda context, a, b, c: (signature, codegen),
        4: lambda context, a, b, c, d: (signature, codegen),
        5: lambda context, a, b, c, d, e: (signature, codegen),
        6: lambda context, a, b, c, d, e, f: (signature, codegen),
        7: lambda context, a, b, c, d, e, f, g: (signature, codegen),
        8: lambda context, a, b, c, d, e, f, g, h: (signature, codegen),
    }
    return cast("Callable[..., Any]", intrinsic(typers[parameters]))


def pointer(builder: Any, address: Any, kind: Any, index: Any = None) -> Any:
    """A pointer to element `index` of the array of `kind` at an integer address."""
    base = builder.inttoptr(address, kind.as_pointer())
    return base if index is None else builder.gep(base, [index])


def constant(value: int) -> Any:
    return ir.Constant(I64, value)


def like(shape: Any, element: Any) -> Any:
    """The type with the lanes of type `shape`, if it has any, and elements of type `element`."""
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def fill(kind: Any, value: float) -> Any:
    """A constant of a scalar or vector type."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector that holds `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c by lane, rounded once."""
    return builder.call(_declare(builder, f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3), [a, b, c])


def round_pair(builder: Any, low: Any, high: Any) -> Any:
    """bfloat16 bits of two vectors beside one another, rounded to nearest, ties to even; denormal numbers are zero.

    An instruction of processors with AVX512-BF16.
    """
    halves = ir.VectorType(I16, 2 * LANES)
    return call(builder, f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * LANES}", halves, [high, low])


def fold_lanes(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the lanes to one scalar: upper half with lower half until one is left."""
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = (
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = combine(lower, upper)
    return builder.extract_element(vector, ir.Constant(I32, 0))


def lane_sum(builder: Any, vector: Any) -> Any:
    """Sum of the lanes in the order of `fold_lanes`."""
    return fold_lanes(builder, vector, builder.fadd)


def load_vector(builder: Any, address: Any, index: Any) -> Any:
    """The vector that starts at float `index` of an address, whatever its alignment."""
    return builder.load(builder.bitcast(pointer(builder, address, F32, index), VECTOR.as_pointer()), align=4)


def store_vector(builder: Any, vector: Any, address: Any, index: Any) -> None:
    builder.store(vector, builder.bitcast(pointer(builder, address, F32, index), VECTOR.as_pointer()), align=4)


def loop(
    builder: Any, count: Any, step: int, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """`for i in range(0, count, step): carried = body(i, carried)`; the body runs at least once."""
    before = builder.block
    inside, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(inside)
    builder.position_at_end(inside)
    index = builder.phi(I64)
    index.add_incoming(constant(0), before)
    carried = [builder.phi(value.type) for value in initial]
    for phi, value in zip(carried, initial, strict=True):
        phi.add_incoming(value, before)
    results = body(index, carried)
    end = builder.block
    following = builder.add(index, constant(step))
    index.add_incoming(following, end)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, end)
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return results


def prefetch(builder: Any, address: Any) -> None:
    """Have the line at an address, which may lie outside all memory, brought to the second cache for a coming read."""
    place = builder.inttoptr(address, ir.IntType(8).as_pointer())
    said = [ir.Constant(I32, value) for value in (0, 2, 1)]  # a read, all caches but the first, of data
    call(builder, "llvm.prefetch.p0i8", ir.VoidType(), [place, *said])


def opaque(builder: Any, value: Any) -> Any:
    """A whole number of 64 bits of which the optimiser knows nothing."""
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], False)


def opaque_mask(builder: Any, mask: Any) -> Any:
    """A mask of 64 bits in a register of AVX-512, of whose value the optimiser knows nothing."""
    value = builder.asm(ir.FunctionType(I64, [I64]), "", "=k,0", [builder.bitcast(mask, I64)], False)
    return builder.bitcast(value, mask.type)


def zero_vector() -> Any:
    return ir.Constant(VECTOR, [0.0] * LANES)


def _atomic_add(builder: Any, values: Any) -> Any:
    return builder.atomic_rmw("add", pointer(builder, values[0], I64), values[1], "seq_cst")


def _atomic_load(builder: Any, values: Any) -> Any:
    return builder.load_atomic(pointer(builder, values[0], I64), "seq_cst", 8)


def _atomic_store(builder: Any, values: Any) -> None:
    builder.store_atomic(values[1], pointer(builder, values[0], I64), "seq_cst", 8)


def _pause(builder: Any, _values: Any) -> None:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        builder.call(_declare(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
    elif machine in ("aarch64", "arm64"):
        builder.call(_declare(builder, "llvm.aarch64.hint", ir.VoidType(), [I32]), [ir.Constant(I32, 1)])


def _call_job(builder: Any, values: Any) -> None:
    builder.call(builder.inttoptr(values[0], ir.FunctionType(ir.VoidType(), [I64]).as_pointer()), [values[1]])


def _dot(builder: Any, values: Any) -> Any:
    a, b, size = values

    def body(index: Any, carried: list[Any]) -> list[Any]:
        return [fma(builder, load_vector(builder, a, index), load_vector(builder, b, index), carried[0])]

    return lane_sum(builder, loop(builder, size, LANES, [zero_vector()], body)[0])


def _largest(builder: Any, values: Any) -> Any:
    lowest = ir.Constant(VECTOR, [float("-inf")] * LANES)
    highest = ir.Constant(VECTOR, [float("inf")] * LANES)

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    def body(index: Any, carried: list[Any]) -> list[Any]:
        numbers = load_vector(builder, values[0], index)
        return [larger(builder.select(builder.fcmp_unordered("uno", numbers, numbers), highest, numbers), carried[0])]

    return fold_lanes(builder, loop(builder, values[1], LANES, [lowest], body)[0], larger)


def _total(builder: Any, values: Any) -> Any:
    def body(index: Any, carried: list[Any]) -> list[Any]:
        return [builder.fadd(carried[0], load_vector(builder, values[0], index))]

    return lane_sum(builder, loop(builder, values[1], LANES, [zero_vector()], body)[0])


def _widened(builder: Any, values: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(values[0], I32), ir.Constant(I32, 16)), F32)


def _float_bits(builder: Any, values: Any) -> Any:
    return builder.bitcast(values[0], I32)


_i64, _f32 = types.int64, types.float32

atomic_add: Callable[[int, int], int] = define(_i64(_i64, _i64), _atomic_add, 2)
"""Add to the int64 at an address and return what it held."""
atomic_load: Callable[[int], int] = define(_i64(_i64), _atomic_load, 1)
"""The int64 at an address."""
atomic_store: Callable[[int, int], None] = define(types.void(_i64, _i64), _atomic_store, 2)
"""Set the int64 at an address."""
pause: Callable[[], None] = define(types.void(), _pause, 0)
"""Tell the core that this is a waiting loop."""
call_job: Callable[[int, int], None] = define(types.void(_i64, _i64), _call_job, 2)
"""Call the `void(int64)` function at an address."""
dot: Callable[[int, int, int], float] = define(_f32(_i64, _i64, _i64), _dot, 3)
"""Inner product of float32 arrays (addresses, size a positive multiple of 16): 16 chains of fma, then `lane_sum`."""
widened: Callable[[int], float] = define(_f32(types.uint16), _widened, 1)
"""The float32 equal to the bfloat16 of the given bits."""
float_bits: Callable[[float], int] = define(types.uint32(_f32), _float_bits, 1)
"""The bits of a float32."""
largest: Callable[[int, int], float] = define(_f32(_i64, _i64), _largest, 2)
"""Largest of a float32 array (address, size a positive multiple of 16); NaN counts as infinity."""
total: Callable[[int, int], float] = define(_f32(_i64, _i64), _total, 2)
"""Sum of a float32 array (address, size a positive multiple of 16): 16 interleaved chains, then `lane_sum`."""


def _address_as(result: Any) -> Callable[[int], Any]:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    def typer(_context: Any, _address: Any) -> Any:
        return result(types.int64), codegen

    return cast("Callable[[int], Any]", intrinsic(typer))


pointer_f32 = _address_as(types.CPointer(types.float32))
"""The float32 array at an address, indexed without bounds."""
pointer_i32 = _address_as(types.CPointer(types.int32))
"""The int32 array at an address, indexed without bounds."""
pointer_u8 = _address_as(types.CPointer(types.uint8))
"""The uint8 array at an address, indexed without bounds."""
pointer_u32 = _address_as(types.CPointer(types.uint32))
"""The uint32 array at an address, indexed without bounds."""
pointer_u64 = _address_as(types.CPointer(types.uint64))
"""The uint64 array at an address, indexed without bounds."""
pointer_f64 = _address_as(types.CPointer(types.float64))
"""The float64 array at an address, indexed without bounds."""
pointer_u16 = _address_as(types.CPointer(types.uint16))
"""The uint16 array at an address, indexed without bounds."""


def record_at(dtype: Any) -> Callable[[int], Any]:
    """Intrinsic that gives the record of a numpy structured `dtype` at an address."""
    return _address_as(numba.from_dtype(dtype))


def address_of(dtype: Any, *, strided: bool = False) -> Callable[[Any], int]:
    """Intrinsic that gives the address of an array of `dtype`; other arrays fail to compile.

    The array must be C-contiguous unless `strided`.
    """

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        return builder.ptrtoint(array.data, I64)

    def typer(_context: Any, array: Any) -> Any:
        if not isinstance(array, types.Array) or array.dtype != dtype or not (strided or array.layout == "C"):
            raise TypingError(f"the array is {array}, expected {'strided' if strided else 'C-contiguous'} {dtype}")
        return types.int64(array), codegen

    return cast("Callable[[Any], int]", intrinsic(typer))


address_f32, address_i32 = address_of(types.float32), address_of(types.int32)
address_u8, address_u32, address_u64 = address_of(types.uint8), address_of(types.uint32), address_of(types.uint64)
address_rows_f32 = address_of(types.float32, strided=True)
"""Address of a float32 array of any layout."""
