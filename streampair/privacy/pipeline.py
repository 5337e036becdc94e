"""What may stand in a pipeline with a private learner (docs/privacy.md 7).

A step in front of a private learner that has learned from the stream makes every later record a function of
the earlier ones: the learner's guarantee then says nothing about them. So only functions of one record are
accepted there.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from river import base, compose

from streampair.errors import PrivacyError

__all__ = ["check_pipeline", "is_private", "is_stateless", "private_inside", "walk"]

#: Steps whose output is a function of the one record they are given. By name: to import all of River's
#: preprocessing costs every start a second.
STATELESS: Final = frozenset(
    {
        "river.compose.func.FuncTransformer",
        "river.compose.select.Select",
        "river.compose.select.SelectType",
        "river.compose.select.Discard",
        "river.compose.renamer.Renamer",
        "river.compose.renamer.Prefixer",
        "river.compose.renamer.Suffixer",
        "river.preprocessing.scale.Binarizer",
        "river.preprocessing.scale.Normalizer",
        "river.preprocessing.feature_hasher.FeatureHasher",
        "river.feature_extraction.poly.PolynomialExtender",
        "streampair.preprocessing.Bounds",
        "streampair.preprocessing.Hashing",
        "streampair.preprocessing.RandomFourier",
        "streampair.preprocessing.UnitBall",
    }
)


def is_private(step: object) -> bool:
    """Whether the step keeps a privacy account: it can take a null step."""
    return callable(getattr(step, "learn_null", None))


def is_stateless(step: object) -> bool:
    """Whether the step's output depends on one record alone, the same after every start."""
    kind = type(step)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.endswith(".FeatureHasher") and getattr(step, "seed", None) is None:
        return False  # its hash is drawn anew by each process
    return name in STATELESS


def walk(
    steps: MutableMapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, MutableMapping[str, Any], str]]:
    """(path, step, the mapping that holds it, its key there) of all steps, inner ones too, the last last."""
    for name, step in list(steps.items()):
        path = f"{prefix}{name}"
        if isinstance(step, compose.Pipeline):
            yield from walk(step.steps, f"{path}/")
        elif isinstance(step, compose.TransformerUnion):
            yield from walk(step.transformers, f"{path}/")
        else:
            yield path, step, steps, name


def private_inside(step: object) -> str | None:
    """The class of a private learner among the attributes of a wrapper, two levels deep."""
    seen: list[object] = [step]
    for _ in range(2):
        below: list[object] = []
        for item in seen:
            for value in getattr(item, "__dict__", {}).values():
                below.extend(value if isinstance(value, list | tuple) else [value])
                if isinstance(value, dict):
                    below.extend(value.values())
        for item in below:
            if is_private(item):
                return type(item).__name__
        seen = [item for item in below if isinstance(item, base.Base)]
    return None


def check_pipeline(model: Any, *, trust_preprocessing: bool = False) -> tuple[str, ...]:
    """Refuse a model in which a private learner's guarantee would not hold.

    Parameters
    ----------
    model
        A private learner, or a `river.compose.Pipeline` that ends in one.
    trust_preprocessing
        Accept steps that may learn from the stream in front of it. The guarantee is then void.

    Returns
    -------
    tuple
        Why the guarantee is void, one sentence each; empty where it holds.

    Raises
    ------
    PrivacyError
        If no step is private, a private one is not the last or is inside a wrapper, or a step in front of it
        is not known to be a function of one record.

    Notes
    -----
    Accepted in front: `streampair.preprocessing`, and of River `Select`, `SelectType`, `Discard`, `Renamer`,
    `Prefixer`, `Suffixer`, `Binarizer`, `Normalizer`, `PolynomialExtender`, `FeatureHasher` with a seed, and
    `FuncTransformer`, whose function is taken at its word. What cannot be seen from here: what has been
    fitted before the pipeline was built (bounds measured on the stream, a function that remembers), what is
    done with the scores behind it (a running calibration, a threshold chosen on the stream, an early stop),
    and how often the stream is fed. A lane keeps its own control flow to metadata (docs/privacy.md 8).

    Examples
    --------
    >>> from river import preprocessing
    >>> from streampair import auc, privacy
    >>> from streampair.preprocessing import Bounds
    >>> privacy.check_pipeline(Bounds({"age": (0, 120)}) | auc.PairFTRL(horizon=1000))
    ()
    >>> scaled = preprocessing.StandardScaler() | auc.PairFTRL(horizon=1000)
    >>> privacy.check_pipeline(scaled)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    streampair.errors.PrivacyError: StandardScaler (at 'StandardScaler') may learn from the stream...
    """
    steps = dict(model.steps) if isinstance(model, compose.Pipeline) else {type(model).__name__: model}
    found = [(path, step) for path, step, _, _ in walk(steps)]
    learner = found[-1][1] if found else None
    for path, step in found:
        if step is not learner and is_private(step):
            raise PrivacyError(
                f"the private learner {type(step).__name__} is not the last step (it is at {path!r})",
                fix="put it last, and give every private learner a lane of its own",
            )
        inner = None if is_private(step) else private_inside(step)
        if inner is not None:
            raise PrivacyError(
                f"{type(step).__name__} wraps the private learner {inner}: how often it learns a record, and "
                "which, is then not under the control of its accountant",
                fix=f"use {inner} as the last step, without a wrapper",
            )
    if not is_private(learner):
        raise PrivacyError(
            "there is no private learner in the model", fix="end it with one, for example auc.PairFTRL"
        )
    name = type(learner).__name__
    learns = [(path, step) for path, step in found[:-1] if not is_stateless(step)]
    for path, step in learns if not trust_preprocessing else ():
        kind = type(step).__name__
        if kind == "FeatureHasher":
            raise PrivacyError(
                f"{kind} (at {path!r}) has no seed: it hashes differently after every start, in front of "
                f"the private learner {name}",
                fix="use streampair.preprocessing.Hashing, which also keeps the zeros",
            )
        raise PrivacyError(
            f"{kind} (at {path!r}) may learn from the stream in front of the private learner {name}: "
            "what it passes on then depends on every earlier record, and the guarantee does not hold",
            fix="scale by declared public bounds with streampair.preprocessing.Bounds, or with bounds= "
            f"and warmup= of {name}; steps that are functions of one record (Select, FuncTransformer, "
            "Normalizer, ...) are fine; trust_preprocessing=True accepts the loss of the guarantee",
        )
    return tuple(f"{type(step).__name__} learns from the stream in front of {name}" for _, step in learns)
