"""Slow, obvious twins of the compiled kernels: plain Python, as the papers write it.

A module for each of `streampair.kernels`; `tests/unit/test_kernel_twins.py` holds each kernel against its
twin.
"""

from naive.all_pairs import metric_risk_gradient, pair_sums, pair_sums_logistic, risk_gradient
from naive.buffers import Buffer, binomial, row_to_replace
from naive.correlated import blt_variances
from naive.descent import descent
from naive.design import clipped, prepared
from naive.entities import admitted, cell, table
from naive.forest import Forest, Text
from naive.forest_classes import Classes
from naive.forest_layout import pair_places, places
from naive.forest_pairs import PairForest
from naive.forest_parts import importances, parts
from naive.fourier import fourier, normals_from_seed
from naive.hashing import blake2b, hash_chain
from naive.history import FullHistory, history_gradient, history_store
from naive.laplace import laplace_integers
from naive.least_squares import LeastSquares
from naive.link import Link, due, probabilities
from naive.losses import entropy, loss_of_errors, loss_slope, loss_value, pair_slope, slope
from naive.metric import PairMetric, map_rows
from naive.moments import (
    best_weights,
    block_influence,
    cells,
    class_bins,
    class_contribution,
    class_sums,
    contribution,
    cross_sums,
    dearest_windows,
    leader_slot,
    leader_sums,
    moment_sums,
    score_sums,
)
from naive.noise import blt_noise, dense, normals, normals_in_order, toeplitz_noise
from naive.numerics import (
    MASK,
    cos_octant,
    cube_root,
    exp_negative,
    log_one_plus,
    log_positive,
    sigmoid,
    sigmoid_many,
    sin_cos,
    sin_octant,
    two_thirds,
    uniform,
)
from naive.ogd import PairOGD, probability, score
from naive.online_auc import OAM, SPAUC, spauc_gradient
from naive.pairs import pair_descent
from naive.private import (
    Pair,
    Places,
    gradient,
    linear_pair,
    mean_gradient,
    metric_pair,
    null,
    pair_gradient,
    partner_gradient,
)
from naive.private_steps import (
    Gradient,
    ftrl,
    ftrl_turns,
    noisy,
    noisy_turns,
    output,
    released,
    rounded_gradient,
    score_and_cells,
)
from naive.relations import components, contrastive_sum, graph_pieces
from naive.rolling_auc import Window
from naive.sampling import Draw, Thinning, Uniform, kept, woven
from naive.sensitivity import fifo_influence, moves, pairs, worst
from naive.sparse import SparsePairOGD, probability_few, scatter, score_few
from naive.symmetric import (
    eigenvalues,
    matrix,
    positive_definite,
    project_psd,
    psd_root,
    ridge_solution,
    vector,
)
from naive.vectors import (
    Vector,
    ball,
    dot,
    first_unusable,
    project_ball,
    rows_of_columns,
    score_many,
    unusable_row,
)

__all__ = [
    "MASK",
    "OAM",
    "SPAUC",
    "Buffer",
    "Classes",
    "Draw",
    "Forest",
    "FullHistory",
    "Gradient",
    "LeastSquares",
    "Link",
    "Pair",
    "PairForest",
    "PairMetric",
    "PairOGD",
    "Places",
    "SparsePairOGD",
    "Text",
    "Thinning",
    "Uniform",
    "Vector",
    "Window",
    "admitted",
    "ball",
    "best_weights",
    "binomial",
    "blake2b",
    "block_influence",
    "blt_noise",
    "blt_variances",
    "cell",
    "cells",
    "class_bins",
    "class_contribution",
    "class_sums",
    "clipped",
    "components",
    "contrastive_sum",
    "contribution",
    "cos_octant",
    "cross_sums",
    "cube_root",
    "dearest_windows",
    "dense",
    "descent",
    "dot",
    "due",
    "eigenvalues",
    "entropy",
    "exp_negative",
    "fifo_influence",
    "first_unusable",
    "fourier",
    "ftrl",
    "ftrl_turns",
    "gradient",
    "graph_pieces",
    "hash_chain",
    "history_gradient",
    "history_store",
    "importances",
    "kept",
    "laplace_integers",
    "leader_slot",
    "leader_sums",
    "linear_pair",
    "log_one_plus",
    "log_positive",
    "loss_of_errors",
    "loss_slope",
    "loss_value",
    "map_rows",
    "matrix",
    "mean_gradient",
    "metric_pair",
    "metric_risk_gradient",
    "moment_sums",
    "moves",
    "noisy",
    "noisy_turns",
    "normals",
    "normals_from_seed",
    "normals_in_order",
    "null",
    "output",
    "pair_descent",
    "pair_gradient",
    "pair_places",
    "pair_slope",
    "pair_sums",
    "pair_sums_logistic",
    "pairs",
    "partner_gradient",
    "parts",
    "places",
    "positive_definite",
    "prepared",
    "probabilities",
    "probability",
    "probability_few",
    "project_ball",
    "project_psd",
    "psd_root",
    "released",
    "ridge_solution",
    "risk_gradient",
    "rounded_gradient",
    "row_to_replace",
    "rows_of_columns",
    "scatter",
    "score",
    "score_and_cells",
    "score_few",
    "score_many",
    "score_sums",
    "sigmoid",
    "sigmoid_many",
    "sin_cos",
    "sin_octant",
    "slope",
    "spauc_gradient",
    "table",
    "toeplitz_noise",
    "two_thirds",
    "uniform",
    "unusable_row",
    "vector",
    "worst",
    "woven",
]
