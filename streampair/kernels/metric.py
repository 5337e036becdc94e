"""Online gradient descent on a symmetric matrix W (docs/privacy 2; H20, Example 1).

The state is that of `state`, with matrices [cap][cap] in place of the vectors of weights::

    [0, HEADER)  x[cap]  gradient  W  previous  averaged  rows[size][1 + cap]

The label of a row is a number that stands for its class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import ogd_buffer
from streampair.kernels.history import (
    admit,
    admit_many,
    as_stored,
    doubles,
    history_store,
    history_table,
    singles,
)
from streampair.kernels.losses import loss_slope
from streampair.kernels.ogd import ogd_move
from streampair.kernels.state import CAP, FILLED, HEADER, L2, LOSS, PSD, RADIUS, RECORDS, SINGLE, D
from streampair.kernels.symmetric import project_psd
from streampair.kernels.vectors import MAX_ABS_METRIC, dot, first_beyond, project_ball, unusable_row, view


@kernel
def _metric_pair(flat: Array, u: Array, same: float, cap: int, code: int, pairs: int, g: Array) -> None:
    """Add the gradient of one of so many pairs, with the difference u, to the lower triangle of g."""
    d = u.shape[0]
    distance = 0.0
    for i in range(d):
        distance += u[i] * dot(flat[i * cap : i * cap + d], u)
    k = -same * loss_slope(code, same * (1.0 - distance)) / pairs
    if k != 0.0:
        for i in range(d):
            scaled = k * u[i]
            for j in range(i + 1):
                g[i * cap + j] += scaled * u[j]


@kernel
def _metric_move(s: Array) -> None:
    """Step W against the gradient, of which the lower triangle is filled, and project it."""
    d = int(s[D])
    cap = int(s[CAP])
    cells = cap * cap
    at = HEADER + cap
    g = view(s, at, cells)
    flat = s[at + cells : at + 2 * cells]
    previous = s[at + 2 * cells : at + 3 * cells]
    averaged = s[at + 3 * cells : at + 4 * cells]
    for i in range(d):
        for j in range(i):
            g[j * cap + i] = g[i * cap + j]
    ogd_move(s, g, flat, previous, averaged)
    if s[PSD] > 0.0:
        w = np.empty((d, d))
        for i in range(d):
            w[i] = flat[i * cap : i * cap + d]
        project_psd(w)
        for i in range(d):
            flat[i * cap : i * cap + d] = w[i]
    project_ball(flat, s[RADIUS])


@kernel
def _metric_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with the buffer, then into the buffer."""
    d = int(s[D])
    cap = int(s[CAP])
    cells = cap * cap
    filled = int(s[FILLED])
    rows = HEADER + cap + 4 * cells
    s[RECORDS] += 1.0
    if filled > 0:
        code = int(s[LOSS])
        at = HEADER + cap
        g = view(s, at, cells)
        flat = s[at + cells : at + 2 * cells]
        for i in range(cells):
            g[i] = s[L2] * flat[i]
        u = np.empty(d)
        place = rows
        for _r in range(filled):
            for i in range(d):
                u[i] = x[i] - s[place + 1 + i]
            _metric_pair(flat, u, 1.0 if s[place] == y else -1.0, cap, code, filled, g)
            place += 1 + cap
        _metric_move(s)
    ogd_buffer(s, view(s, 0, 0), x, y, rows, 0)


@kernel
def metric_learn(s: Array, y: float) -> int:
    """Learn the packed record with class y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_beyond(x, MAX_ABS_METRIC)
    if bad >= 0:
        return bad + 1
    _metric_step(s, x, y)
    return 0


@kernel
def metric_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`ogd_learn_many` of a metric, which scores no rows: `scores` is not used."""
    bad: int = unusable_row(rows, MAX_ABS_METRIC)
    if bad == 0:
        for r in range(rows.shape[0]):
            _metric_step(s, rows[r], labels[r])
    return bad


@kernel
def map_rows(matrix: Array, rows: Array, out: Array) -> int:
    """Rows (n, d) times a symmetric matrix. Returns 0, or 1 + the flat index of the first unusable value."""
    for r in range(rows.shape[0]):
        bad = first_beyond(rows[r], MAX_ABS_METRIC)
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
        for i in range(rows.shape[1]):
            out[r, i] = dot(matrix[i], rows[r])
    return 0


@kernel
def _metric_block(
    flat: Array,
    x: Array,
    y: float,
    rows: NDArray[np.floating[Any]],
    labels: Array,
    cap: int,
    code: int,
    pairs: int,
    u: Array,
    g: Array,
) -> None:
    """`_metric_pair` with each row of a block of the full history."""
    for r in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            u[i] = x[i] - rows[r, i]
        for i in range(rows.shape[1], x.shape[0]):
            u[i] = x[i]
        _metric_pair(flat, u, 1.0 if labels[r, 0] == y else -1.0, cap, code, pairs, g)


@kernel
def _metric_history_step(s: Array, x: Array, y: float) -> None:
    """One record of a metric: step on the pairs with all records of the past, then into the blocks."""
    cap = int(s[CAP])
    cells = cap * cap
    past = int(s[RECORDS])
    table = history_table(s)
    single = s[SINGLE] > 0.0
    s[RECORDS] = s[FILLED] = past + 1.0
    if past > 0:
        code = int(s[LOSS])
        at = HEADER + cap
        g = view(s, at, cells)
        flat = s[at + cells : at + 2 * cells]
        for i in range(cells):
            g[i] = s[L2] * flat[i]
        u = np.empty(x.shape[0])
        left = past
        for b in range(table.shape[0]):
            n = min(left, int(table[b, 3]))
            if n <= 0:
                break
            labels = doubles(table[b, 1], n, 1)
            if single:
                rows32 = singles(table[b, 0], n, int(table[b, 2]))
                _metric_block(flat, x, y, rows32, labels, cap, code, past, u, g)
            else:
                rows64 = doubles(table[b, 0], n, int(table[b, 2]))
                _metric_block(flat, x, y, rows64, labels, cap, code, past, u, g)
            left -= n
        _metric_move(s)
    history_store(x, y, table, past, single)


@kernel
def metric_history_learn(s: Array, y: float) -> int:
    """Learn the packed record with class y. Returns 0; or, with nothing changed, 1 + the unusable column, or
    NO_ROOM.
    """
    x = s[HEADER : HEADER + int(s[D])]
    code: int = admit(s, x, MAX_ABS_METRIC)
    if code == 0:
        _metric_history_step(s, as_stored(s, x), y)
    return code


@kernel
def metric_history_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`metric_learn_many` over the full history. Returns, with nothing changed, NO_ROOM too."""
    code: int = admit_many(s, rows, MAX_ABS_METRIC)
    if code == 0:
        for r in range(rows.shape[0]):
            _metric_history_step(s, as_stored(s, rows[r]), labels[r])
    return code
