"""Inner product, projection on a ball, raw rows to design vectors, and the test whether values are usable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.core import imputils as _imputils
from numba.extending import intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

from streampair.kernels._jit import DISABLED, Array, kernel

# A feature beyond this size is refused like infinity: below it no product in any kernel can overflow.
MAX_ABS = 1e50
MAX_ABS_METRIC = 1e30  # the gradient of a metric is quadratic in the features
MAX_FINITE = float(np.finfo(np.float64).max)


def _sum_in_lanes(typing_context: Any, *factors: Any) -> Any:
    """`dot` of two arrays, `dot_difference` of three, with the four sums in the lanes of one vector.

    Written in LLVM's own terms, because numba makes vectors of sums only if it may reorder them. Each lane
    rounds as the sum alone would, on every processor, whatever the width of its registers.
    """

    cgutils: Any = _cgutils  # it has no types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        double = ir.DoubleType()
        lanes = ir.VectorType(double, 4)
        arrays = [
            context.make_array(t)(context, builder, v) for t, v in zip(signature.args, args, strict=True)
        ]
        single = [t.dtype == types.float32 for t in signature.args]
        n = builder.extract_value(arrays[0].shape, 0)
        whole = builder.and_(n, ir.Constant(n.type, -4))

        def load(which: int, i: Any, kind: Any) -> Any:
            place = builder.gep(arrays[which].data, [i])
            element = ir.FloatType() if single[which] else double
            if kind is lanes:
                place = builder.bitcast(place, ir.VectorType(element, 4).as_pointer())
            value = builder.load(place, align=4 if single[which] else 8)
            return builder.fpext(value, kind) if single[which] else value

        def add(total: Any, i: Any, kind: Any) -> None:
            other = load(1, i, kind)
            if len(factors) == 3:
                other = builder.fsub(other, load(2, i, kind))
            product = builder.fmul(load(0, i, kind), other)
            builder.store(builder.fadd(builder.load(total), product), total)

        zero, one, four = (ir.Constant(n.type, value) for value in (0, 1, 4))
        sums = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * 4))
        with cgutils.for_range_slice(builder, zero, whole, four) as (i, _):
            add(sums, i, lanes)
        parts = [
            builder.extract_element(builder.load(sums), ir.Constant(ir.IntType(32), j)) for j in range(4)
        ]
        first = cgutils.alloca_once_value(builder, parts[0])
        with cgutils.for_range_slice(builder, whole, n, one) as (i, _):
            add(first, i, double)
        left = builder.fadd(builder.load(first), parts[1])
        return builder.fadd(left, builder.fadd(parts[2], parts[3]))

    return types.float64(*factors), codegen


def _of_two(typing_context: Any, a: Any, b: Any) -> Any:
    return _sum_in_lanes(typing_context, a, b)


def _of_three(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    return _sum_in_lanes(typing_context, a, b, c)


_in_lanes: Any = intrinsic(_of_two)
_differences_in_lanes: Any = intrinsic(_of_three)


if DISABLED:

    def dot(a: Array, b: Array) -> float:
        """Inner product in one fixed order: four interleaved sums, and what is left over to the first."""
        whole = len(a) - len(a) % 4
        sums = [0.0] * 4
        for i in range(len(a)):
            sums[i % 4 if i < whole else 0] += float(a[i]) * float(b[i])
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    def dot_difference(w: Array, a: Array, b: Array) -> float:
        """`dot` of w with a less b."""
        return dot(w, a - b)

else:

    @kernel
    def dot(a: Array, b: Array) -> float:
        """Inner product in one fixed order: four interleaved sums, and what is left over to the first."""
        return _in_lanes(a, b)  # type: ignore[no-any-return]

    @kernel
    def dot_difference(w: Array, a: Array, b: Array) -> float:
        """`dot` of w with a less b."""
        return _differences_in_lanes(w, a, b)  # type: ignore[no-any-return]


def _view_at(typing_context: Any, array: Any, start: Any, length: Any) -> Any:
    """`view(a, start, length)`: the slice ``a[start : start + length]``, not counted as a reference to a.

    To count costs a good part of a step with nine features. For use while the caller holds a.
    """

    fill: Any = arrayobj.populate_array  # it has no types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, args[0])
        made = context.make_array(signature.return_type)(context, builder)
        itemsize = context.get_constant(types.intp, 8)
        fill(
            made,
            data=builder.gep(source.data, [args[1]]),
            shape=[args[2]],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return made._getvalue()

    return types.Array(types.float64, 1, "C")(array, types.intp, types.intp), codegen


def _slice(a: Array, start: int, length: int) -> Array:
    return a[start : start + length]


view: Any = _slice if DISABLED else intrinsic(_view_at)


def _of_type_at(typing_context: Any, array: Any, dtype: Any) -> Any:
    """`viewed_as`, in LLVM's own terms: numba's takes long to compile."""
    fill: Any = arrayobj.populate_array  # it has no types
    imputils: Any = _imputils
    made_type = types.Array(dtype.instance_type, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(array)(context, builder, args[0])
        made = context.make_array(made_type)(context, builder)
        old, new = (context.get_abi_sizeof(context.get_data_type(t.dtype)) for t in (array, made_type))
        length, size = builder.extract_value(source.shape, 0), context.get_constant(types.intp, new)
        if old != new:
            length = builder.udiv(builder.mul(length, context.get_constant(types.intp, old)), size)
        fill(
            made,
            data=builder.bitcast(source.data, made.data.type),
            shape=[length],
            strides=[size],
            itemsize=size,
            meminfo=source.meminfo,
            parent=source.parent,
        )
        return imputils.impl_ret_borrowed(context, builder, made_type, made._getvalue())

    return made_type(array, dtype), codegen


def _of_type(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """The bytes of an array (n,) as numbers of another type."""
    return array.view(dtype)


viewed_as: Any = _of_type if DISABLED else intrinsic(_of_type_at)


@kernel
def project_ball(w: Array, radius: float) -> None:
    """Scale w in place onto the l2 ball of the given radius if it lies outside."""
    norm2 = dot(w, w)
    if norm2 > radius * radius:
        scale = radius / math.sqrt(norm2)
        for i in range(w.shape[0]):
            w[i] *= scale


@kernel
def first_beyond(x: Array, limit: float) -> int:
    """Index of the first value that is NaN, infinite or larger than the limit; -1 if there is none."""
    # A loop that runs to its end is made of vectors; one that may stop at any value is not.
    bad = 0
    for i in range(x.shape[0]):
        bad |= 0 if abs(x[i]) <= limit else 1  # also catches NaN
    if bad == 0:
        return -1
    first = 0
    while abs(x[first]) <= limit:
        first += 1
    return first


@kernel
def unusable_row(rows: Array, limit: float) -> int:
    """1 + the flat index of the first value of (n, d) rows that is NaN or larger than the limit; else 0."""
    for r in range(rows.shape[0]):
        bad = first_beyond(rows[r], limit)
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
    return 0


@kernel
def first_unusable(x: Array) -> int:
    """Index of the first value that is NaN, infinite or beyond MAX_ABS; -1 if there is none."""
    return first_beyond(x, MAX_ABS)


@kernel
def rows_of_columns(columns: Array, order: NDArray[np.uintp], out: Array) -> None:
    """Rows (n, d) from columns (d, n): column ``order[j]`` becomes feature j."""
    # Row by row, because what is read stays in the cache for the next rows; an order without signs, because
    # numba looks at each place whether it counts from the end.
    for r in range(columns.shape[1]):
        for j in range(order.shape[0]):
            out[r, j] = columns[order[j], r]


TILE = 128


@kernel
def score_many(w: Array, rows: Array, out: Array) -> int:
    """Scores of (n, d) rows. Returns 0, or 1 + the flat index of the first unusable value."""
    for r in range(rows.shape[0]):
        bad = first_unusable(rows[r])
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
        out[r] = dot(w, rows[r])
    return 0


@kernel
def prepare_rows(raw: Array, scaling: Array, standardise: bool, cap: float, out: Array, whole: Array) -> None:
    """Raw values (n, d) to the vectors that are learned: bounds, standardisation, unit ball.

    A value that is NaN or infinite becomes 0, the neutral value, and `whole[row]` 0 instead of 1. With
    `standardise` the scaled values are clipped to [-1, 1] first, and the standardised ones to [-cap, cap]
    (docs/privacy 4.4). A finite value of any size is used. scaling (4, d): scale, shift, mean and factor.
    """
    scale, shift, mean, factor = scaling[0], scaling[1], scaling[2], scaling[3]
    for r in range(raw.shape[0]):
        features = raw[r]
        x = out[r]
        # Loops without branches are made of vectors.
        lost = 0
        huge = 0
        if standardise:
            for i in range(features.shape[0]):
                finite = abs(features[i]) <= MAX_FINITE
                value = min(max(features[i], -1e100), 1e100) * scale[i] + shift[i]
                value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
                x[i] = min(max(value, -cap), cap) if finite else 0.0
                lost |= 0 if finite else 1
                huge |= 1 if abs(x[i]) > 1e50 else 0
        else:
            for i in range(features.shape[0]):
                finite = abs(features[i]) <= MAX_FINITE
                value = min(max(features[i], -1e100), 1e100) * scale[i] + shift[i]
                x[i] = value if finite else 0.0
                lost |= 0 if finite else 1
                huge |= 1 if abs(x[i]) > 1e50 else 0
        whole[r] = 1.0 - lost
        # The norm of values up to 1e200 must not overflow.
        unit = 1.0
        if huge:
            largest = 0.0
            for i in range(features.shape[0]):
                largest = max(largest, abs(x[i]))
            unit = 1.0 / largest
            for i in range(features.shape[0]):
                x[i] *= unit
        norm = math.sqrt(dot(x, x))
        if norm > unit:
            for i in range(raw.shape[1]):
                x[i] /= norm


@kernel
def clip_rows(raw: Array, scaling: Array, out: Array, whole: Array) -> None:
    """Raw values (n, d) scaled by their bounds and clipped to [-1, 1]; a row that is not finite becomes 0."""
    scale, shift = scaling[0], scaling[1]
    for r in range(raw.shape[0]):
        whole[r] = 1.0
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not math.isfinite(value):
                whole[r] = 0.0
                value = 0.0
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            out[r, i] = min(max(value, -1.0), 1.0)
        if whole[r] == 0.0:
            for i in range(raw.shape[1]):
                out[r, i] = 0.0
