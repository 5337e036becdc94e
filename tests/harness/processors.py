"""Run every learner on a fixed stream, and tell what it gave, bit for bit: on another (kind of) processor.

    python processors.py write FILE    each learner over the whole stream; its state and plan from the middle
    python processors.py read FILE     each goes on from there, and a new one runs under the plan

Prints a JSON object: what each learner gave, and how linear algebra rounds in this process.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from harness.learners import LEARNERS, NAMES, PRIVATE, name_of, stream
from streampair import auc, privacy
from streampair.privacy.mechanisms import second_moments

HALF, WHOLE = 130, 180
KEY = bytes(range(32))
MUTANT = "the mutant, whose weights a library finds"


def makes() -> dict[str, Any]:
    """Of each kind one; those with a key, or a seed."""
    seeded = [model for model in LEARNERS if model.privacy is None and getattr(model, "seed", 0) is not None]
    made = {f"{name_of(model)}-{i}": model.clone() for i, model in enumerate(seeded)}
    for name, make in PRIVATE.items():
        # Their horizons are short, so what is run here is without.
        made[name] = make(noise_key=KEY)
    made["moments"] = auc.PairFTRL(
        1.0, 1e-3, 170, features=NAMES, noise_key=KEY, mechanism=privacy.SecondMoments(), warmup=40
    )
    made["endless-moments"] = auc.PairFTRL(1.0, 1e-3, warmup=40, noise_key=KEY)
    made["warm"] = auc.PairFTRL(1.0, 1e-3, warmup=40, noise_key=KEY, mechanism=privacy.PairGradients())
    return made


def run(model: Any, events: list[Any]) -> str:
    """A hash of all scores, digests and releases."""
    digest = hashlib.sha256()
    digests: list[bytes] = []
    if model.privacy is not None:
        model.bind_noise("lane", digests)
    for x, y in events:
        digest.update(float(model.score_one(x)).hex().encode())
        model.learn_one(x, y)
        digest.update(np.ascontiguousarray(model.weights_vector).tobytes())
        digest.update(b"".join(digests))
        digests.clear()
    return digest.hexdigest()


def eigen() -> str:
    """A hash of what linear algebra makes of the same numbers here."""
    digest = hashlib.sha256()
    for seed in range(20):
        a = np.random.default_rng(seed).uniform(size=(5, 5))
        values, vectors = np.linalg.eigh(a + a.T)
        digest.update(values.tobytes() + (vectors @ a[0]).tobytes())
    return digest.hexdigest()


def by_library(model: Any, events: list[Any]) -> str:
    """The mutant: the weights from moments by LAPACK, as it was."""
    true = second_moments.symmetric.ridge_solution

    def solve(second: Any, cross: Any, ridge: float, noise: float, out: Any) -> float:
        values, vectors = np.linalg.eigh(second)
        gaps = values[:, None] - values
        values = values - noise * np.sum(gaps / (gaps**2 + noise / 2), axis=1)
        inverse = 1.0 / (np.maximum(values, 0.0) + ridge)
        out[:] = vectors @ ((vectors.T @ cross) * inverse)
        return float(inverse.sum())

    second_moments.symmetric.ridge_solution = solve
    try:
        return run(model, events)
    finally:
        second_moments.symmetric.ridge_solution = true


def write(file: Path) -> dict[str, str]:
    saved, gave = {}, {}
    for name, model in makes().items():
        events = stream(model, WHOLE)
        cut = HALF if getattr(model, "horizon", None) in (None, 170, 5000) else 20
        first = model.clone()
        run(first, events[:cut])
        plan = first.plan() if first.privacy is not None else None
        saved[name] = (events, cut, first.to_state(), plan)
        gave[f"{name}, from the middle"] = run(restored(model, first.to_state()), events[cut:])
        if plan is not None:
            gave[f"{name}, under the plan"] = run(model.clone(), events)
        if name == "moments":
            gave[MUTANT] = by_library(model.clone(), events)
    file.write_bytes(pickle.dumps(saved))
    return gave


def restored(model: Any, state: Any) -> Any:
    new = model.clone()
    if new.privacy is not None:
        new.bind_noise("lane")
    new.load_state(state)
    return new


def read(file: Path) -> dict[str, str]:
    saved, gave = pickle.loads(file.read_bytes()), {}
    for name, model in makes().items():
        events, cut, state, plan = saved[name]  # the stream too: its normals come from a library
        gave[f"{name}, from the middle"] = run(restored(model, state), events[cut:])
        if plan is not None:
            new = model.clone()
            new.load_plan(plan)
            gave[f"{name}, under the plan"] = run(new, events)
        if name == "moments":
            new = model.clone()
            new.load_plan(plan)
            gave[MUTANT] = by_library(new, events)
    return gave


if __name__ == "__main__":
    gave = {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"gave": gave, "eigen": eigen()}))
