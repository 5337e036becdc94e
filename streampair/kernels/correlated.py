"""Correlated noise: the variance of its prefix sums (docs/privacy.md 4.3)."""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import exp_negative, log_one_plus, log_positive
from streampair.kernels.symmetric import eigen


@kernel
def _log_of_one_minus(slack: float) -> float:
    """log |1 - slack|, also where slack is tiny; -inf at 1."""
    if -0.29 < slack < 0.29:
        return log_one_plus(-slack)
    if slack == 1.0:
        return -math.inf
    return log_positive(abs(1.0 - slack))


@kernel
def blt_variances(omega: Array, decay: Array, steps: Array, out: Array) -> None:
    """Variance of the noise in the prefix sums of `steps` whole numbers of terms, for unit z, in closed form.

    `B = A C^-1` of a BLT with omega and 1 - theta is `b_k = floor + sum_j r_j p_j^k`: its memories obey
    `M' = (diag(theta) - 1 omega^T) M + 1 z`, which is similar to the symmetric `diag(theta) - q q^T`,
    `q = sqrt(omega)`, whose eigenvalues are the p_j.
    """
    h = omega.shape[0]
    matrix = np.empty((h, h))
    rest = 1.0
    for i in range(h):
        rest += omega[i] / decay[i]
        for j in range(h):
            matrix[i, j] = math.sqrt(omega[i]) * math.sqrt(omega[j])
        matrix[i, i] += decay[i]
    floor = 1.0 / rest
    slack = np.empty(h)  # 1 - p
    eigen(matrix, slack)
    weight = np.empty(h)
    logs = np.empty(h)
    for j in range(h):
        along = 0.0
        for i in range(h):
            along += math.sqrt(omega[i]) * matrix[j, i]
        weight[j] = along * along / slack[j]
        logs[j] = _log_of_one_minus(slack[j])
    power = np.empty(h)
    for r in range(steps.shape[0]):
        t = max(steps[r], 0.0)
        for j in range(h):
            a = -t * logs[j]
            power[j] = 1.0
            if t > 0.0:
                power[j] = exp_negative(a) if a >= 0.0 else 1.0 / exp_negative(-a)
                if slack[j] > 1.0 and t % 2.0 == 1.0:
                    power[j] = -power[j]
        single = 0.0
        double = 0.0
        for j in range(h):
            single += weight[j] * ((1.0 - power[j]) / slack[j])
            for i in range(h):
                gap = slack[i] + slack[j] - slack[i] * slack[j]
                double += weight[i] * weight[j] * ((1.0 - power[i] * power[j]) / gap)
        out[r] = t * floor * floor + 2.0 * floor * single + double
