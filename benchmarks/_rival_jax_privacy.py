"""DP-SGD of jax_privacy on a split: a linear model and a small network. For `rivals.py`.

Poisson batches of 1024 records on average, at most a tenth of all, for 20 epochs; gradients clipped to 1;
Adam at a rate of .01. Nothing was tuned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _rival import Task, main
from jax_privacy import batch_selection
from jax_privacy.experimental import execution_plan

EPOCHS, HIDDEN = 20, 64


def _score(weights: Any, x: Any) -> Any:
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = weights[-1]
    return (x @ w + b)[..., 0]


def _loss(weights: Any, batch: Any) -> Any:
    x, y = batch
    return optax.sigmoid_binary_cross_entropy(_score(weights, x), y).mean()


def _of(hidden: tuple[int, ...]) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        columns = 2.0 * task.columns() - 1.0
        x, y = jnp.asarray(columns[task.train]), jnp.asarray(task.labels[task.train].astype(float))
        n, rng = len(y), np.random.default_rng(seed)
        batch = min(1024, n // 10)
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        plan = execution_plan.BandMFExecutionPlanConfig(
            iterations=EPOCHS * n // batch,
            strategy=np.ones(1),
            l2_clip_norm=1.0,
            normalize_by=batch,
            sampling_prob=batch / n,
            epsilon=1.0,
            delta=1.0 / len(task.labels),
            partition_type=batch_selection.PartitionType.INDEPENDENT,
            accountant=dp_accounting.pld.PLDAccountant(relation),
        ).plan
        sizes = (x.shape[1], *hidden, 1)
        weights = [
            (jnp.asarray(rng.normal(size=(a, b)) * (2.0 / a) ** 0.5 * bool(hidden)), jnp.zeros(b))
            for a, b in itertools.pairwise(sizes)
        ]
        gradient, optimizer = plan.clipped_grad(_loss), optax.adam(0.01)
        state, noise = optimizer.init(weights), plan.noise_addition_transform.init(weights)

        @jax.jit
        def step(weights: Any, state: Any, noise: Any, places: Any) -> Any:
            clipped = gradient(weights, (x[places], y[places]), is_padding_example=places < 0)
            noisy, noise = plan.noise_addition_transform.update(clipped, noise)
            updates, state = optimizer.update(noisy, state, weights)
            return optax.apply_updates(weights, updates), state, noise

        for places in plan.batch_selection_strategy.batch_iterator(n):
            padded = batch_selection.pad_to_multiple_of(places, 256).astype(np.int32)
            weights, state, noise = step(weights, state, noise, padded)
        yield from np.asarray(jax.nn.sigmoid(_score(weights, jnp.asarray(columns[task.test]))), float)

    return run


if __name__ == "__main__":
    main(
        {"DP-SGD, linear": _of(()), "DP-SGD, network": _of((HIDDEN,))},
        ("jax_privacy", "jax", "dp-accounting"),
    )
