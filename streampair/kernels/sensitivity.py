"""Sensitivity of a strongly convex run to one record, and the cost of its releases (docs/privacy 4.1)."""

from __future__ import annotations

import numpy as np

from streampair.kernels._jit import Array, kernel


@kernel
def stay_sensitivities(
    etas: Array, factors: Array, owns: Array, shares: Array, diameter: float, most: float, out: Array
) -> None:
    """Largest move of iterate t by any record so far, where records stay for ever.

    `S_t = min(most, max(c_t S_(t-1) + eta_t D q_t, eta_t D p_t))`, with p_t the weight of all pairs of slot t
    and q_t that of one copy in the buffer. What `most` cuts off one move is missing from all later ones.
    """
    s = 0.0
    for t in range(etas.shape[0]):
        move = etas[t] * diameter
        earlier = factors[t] * s + move * shares[t] if t > 0 else 0.0
        s = min(most, max(earlier, move * owns[t]))
        out[t] = s


@kernel
def stay_spend(
    etas: Array,
    factors: Array,
    owns: Array,
    shares: Array,
    diameter: float,
    bounds: Array,
    grids: Array,
    precisions: Array,
    count: int,
) -> float:
    """Largest cost of one record over the first `count` steps, where records stay for ever.

    As `window_spend`, whose window has no end here: what a move of v before step t costs from there on is
    `q2 v^2 + 2 q1 v + q0`, found backwards, or the cost of moving by `S_t` (`bounds`), if that is less.
    """
    q2 = 0.0
    q1 = 0.0
    q0 = 0.0
    most = 0.0
    worst = 0.0
    for t in range(count - 1, -1, -1):
        h = precisions[t]
        c = factors[t]
        move = min(etas[t] * diameter * owns[t], bounds[t])
        after = min(q2 * move * move + 2.0 * q1 * move + q0, most)
        worst = max(worst, h * (move + grids[t]) * (move + grids[t]) + after)
        most += h * (bounds[t] + grids[t]) * (bounds[t] + grids[t])
        b = etas[t] * diameter * shares[t]
        e = b + grids[t]
        q0 += h * e * e + q2 * b * b + 2.0 * q1 * b
        q1 = c * (h * e + q2 * b + q1)
        q2 = c * c * (h + q2)
    return worst


@kernel
def window_sensitivities(
    etas: Array, factors: Array, owns: Array, shares: Array, window: int, diameter: float, out: Array
) -> None:
    """Largest move of iterate t by any record so far, where each is used in `window` steps after its own.

    In the window every record obeys the same affine map `v <- c_t v + eta_t D q_t`, so the order of two
    records in it never changes, and a queue of the candidates gives the largest in O(1) a step: its keys are
    the moves in units of the product P of the factors so far, less what all of them gain. Records that have
    left only decay: `M <- c_t max(M, v)`.
    """
    keys = np.empty(window + 1)
    born = np.empty(window + 1, dtype=np.int64)
    first = 0
    count = 0
    product = 1.0
    gained = 0.0
    merged = 0.0
    for t in range(etas.shape[0]):
        if count > 0 and born[first] < t - window:
            merged = max(merged, product * (keys[first] + gained))
            first = (first + 1) % (window + 1)
            count -= 1
        merged *= factors[t]
        product *= factors[t]
        if product < 1e-150:
            for k in range(count):
                keys[(first + k) % (window + 1)] *= product
            gained *= product
            product = 1.0
        move = etas[t] * diameter / product
        gained += move * shares[t]
        key = move * owns[t] - gained
        while count > 0 and keys[(first + count - 1) % (window + 1)] <= key:
            count -= 1
        place = (first + count) % (window + 1)
        keys[place] = key
        born[place] = t
        count += 1
        out[t] = max(merged, product * (keys[first] + gained))


@kernel
def window_spend(
    etas: Array,
    factors: Array,
    owns: Array,
    shares: Array,
    window: int,
    diameter: float,
    bounds: Array,
    grids: Array,
    precisions: Array,
    count: int,
) -> float:
    """Largest cost of one record over the first `count` steps, `max_i sum_t ((v_i(t) + grid_t) / sigma_t)^2`.

    A step maps `v -> c v + b` and costs a square of the result; a run of steps is a map of the same kind
    with a quadratic cost, `(C, B, q2, q1, q0)`, and two runs compose. The window of every record is the end
    of one block of `window` steps and the beginning of the next, so O(1) compositions a step give them all.
    After the window `F_t = c_t^2 (1 / sigma_t^2 + F_(t+1))` and its like for the mixed and the constant term.

    bounds: `S_t` of all records, which no move exceeds (it knows of the radius, the maps do not): each part
    is cut at the cost of moving by `S_t`.
    """
    n = count
    # Cost of moving by S_t from step t on.
    most = np.zeros(n + 1)
    f2 = np.zeros(n + 1)
    f1 = np.zeros(n + 1)
    f0 = np.zeros(n + 1)
    for t in range(n - 1, -1, -1):
        h = precisions[t]
        c = factors[t]
        g = grids[t]
        most[t] = most[t + 1] + h * (bounds[t] + g) * (bounds[t] + g)
        f2[t] = c * c * (h + f2[t + 1])
        f1[t] = c * (h * g + f1[t + 1])
        f0[t] = h * g * g + f0[t + 1]
    suffix = np.empty((window + 1, 5))
    worst = 0.0
    # The windows of the records of steps start-1 .. start+window-2 begin in start .. start+window-1.
    for start in range(1, n + window, window):
        suffix[window, 0] = 1.0
        for j in range(1, 5):
            suffix[window, j] = 0.0
        for o in range(window - 1, -1, -1):
            t = start + o
            if t >= n:
                for j in range(5):
                    suffix[o, j] = suffix[o + 1, j]
                continue
            c = factors[t]
            h = precisions[t]
            b = etas[t] * diameter * shares[t]
            e = b + grids[t]
            # Step t, then the rest of the block.
            c2, b2, q2, q1, q0 = suffix[o + 1]
            suffix[o, 0] = c2 * c
            suffix[o, 1] = c2 * b + b2
            suffix[o, 2] = h * c * c + q2 * c * c
            suffix[o, 3] = h * c * e + q2 * c * b + q1 * c
            suffix[o, 4] = h * e * e + q2 * b * b + 2.0 * q1 * b + q0
        pc = 1.0
        pb = 0.0
        p2 = 0.0
        p1 = 0.0
        p0 = 0.0
        for o in range(window):
            i = start + o - 1  # the record whose window begins at start + o
            if i >= n:
                break
            if o > 0:
                t = start + window + o - 1  # the last step of this window
                if t < n:
                    c = factors[t]
                    h = precisions[t]
                    b = etas[t] * diameter * shares[t]
                    e = c * pb + b + grids[t]
                    p2 += h * c * c * pc * pc
                    p1 += h * c * pc * e
                    p0 += h * e * e
                    pb = c * pb + b
                    pc = c * pc
            move = min(etas[i] * diameter * owns[i], bounds[i])
            cost = precisions[i] * (move + grids[i]) * (move + grids[i])
            c1, b1, q2, q1, q0 = suffix[o]
            after = c1 * move + b1
            inside = q2 * move * move + 2.0 * q1 * move + q0
            inside += p2 * after * after + 2.0 * p1 * after + p0
            end = min(i + window + 1, n)
            cost += min(inside, most[i + 1] - most[end])
            if end < n:
                left = min(pc * after + pb, bounds[end - 1])
                cost += min(f2[end] * left * left + 2.0 * f1[end] * left + f0[end], most[end])
            worst = max(worst, cost)
    return worst


@kernel
def window_pairs(
    etas: Array,
    factors: Array,
    shares: Array,
    window: int,
    diameter: float,
    bounds: Array,
    precisions: Array,
    merged: Array,
    lasting: Array,
) -> None:
    """Joint cost of two records whose windows do not meet, in two factors.

    `merged[t]` is the largest `v_i(t)` of the records whose window has ended before step t, 0 for none. Such
    a move only decays from there on, so its product with the move of record t, summed over the releases, is
    itself times `lasting[t] = sum_u R_t(u) v_t(u) / sigma_u^2`, with R_t(u) the factors of steps t + 1 to u.
    With `G_u = 1 / sigma_u^2 + c_(u+1)^2 G_(u+1)` that is `eta_t D G_t`, and `b R_t(u) G_u` for each push b
    of its window. Runs of steps are composed as in `window_spend`.
    """
    n = etas.shape[0]
    energy = np.zeros(n + 1)
    for t in range(n - 1, -1, -1):
        c = factors[t + 1] if t + 1 < n else 0.0
        energy[t] = precisions[t] + c * c * energy[t + 1]
    left = np.zeros(n)  # the move at the end of the window
    suffix = np.empty((window + 1, 3))
    for start in range(1, n + window, window):
        suffix[window, 0] = 1.0
        suffix[window, 1] = 0.0
        suffix[window, 2] = 0.0
        for o in range(window - 1, -1, -1):
            t = start + o
            if t >= n:
                for j in range(3):
                    suffix[o, j] = suffix[o + 1, j]
                continue
            c = factors[t]
            b = etas[t] * diameter * shares[t]
            factor, push, kept = suffix[o + 1]
            suffix[o, 0] = factor * c
            suffix[o, 1] = factor * b + push
            suffix[o, 2] = c * (b * energy[t] + kept)
        pc = 1.0
        pb = 0.0
        pk = 0.0
        for o in range(window):
            i = start + o - 1
            if i >= n:
                break
            if o > 0:
                t = start + window + o - 1
                if t < n:
                    c = factors[t]
                    b = etas[t] * diameter * shares[t]
                    pb = c * pb + b
                    pc = c * pc
                    pk += pc * b * energy[t]
            move = min(etas[i] * diameter, bounds[i])
            factor, push, kept = suffix[o]
            lasting[i] = move * energy[i] + kept + factor * pk
            end = min(i + window, n - 1)
            left[i] = min(pc * (factor * move + push) + pb, bounds[end])
    most = 0.0
    for t in range(n):
        if t > window:
            most = max(most, left[t - window - 1])
        most *= factors[t]
        merged[t] = most
