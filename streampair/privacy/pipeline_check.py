"""Checks the steps in front of a private learner in a pipeline (docs/privacy 7.1).

If a step in front of a private learner learns from the stream, every later record is a function of earlier
ones, and the learner's guarantee does not cover them. So a step must be a function of one record. It must
also be total: if it raises on a record, the record takes no slot, and in `learn_many` no record of the batch
does. A lane takes a null slot where a step raises, so there a step may raise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from river import base, compose

from streampair.errors import PrivacyError

if TYPE_CHECKING:
    from streampair.privacy.accounting import PrivacyReport

__all__ = [
    "check_pipeline",
    "class_name",
    "is_private",
    "is_stateless",
    "is_total",
    "pipeline_report",
    "private_inside",
    "walk",
]

#: Steps that are functions of one record and never raise; tests/privacy/test_safe_input.py tests each.
TOTAL: Final = frozenset(
    {
        "streampair.preprocessing.Bounds",
        "streampair.preprocessing.Hashing",
        "streampair.preprocessing.OneHot",
        "streampair.preprocessing.RandomFourier",
        "streampair.preprocessing.Guarded",
        "streampair.preprocessing.UnitBall",
    }
)
#: Steps that are functions of one record and may raise. By name, since importing all of River's preprocessing
#: takes a second.
STATELESS: Final = TOTAL | frozenset(
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
    }
)


def is_private(step: object) -> bool:
    """Whether the step is a private learner: it has `learn_null`."""
    return callable(getattr(step, "learn_null", None))


def is_stateless(step: object) -> bool:
    """Whether the step's output is a function of one record, the same in every process."""
    if isinstance(step, compose.Pipeline | compose.TransformerUnion):
        return all(is_stateless(inner) for _, inner, _, _ in walk({"": step}))
    name = class_name(step)
    if name.endswith(".FeatureHasher") and getattr(step, "seed", None) is None:
        return False  # each process draws another hash
    return name in STATELESS


def is_total(step: object) -> bool:
    """Whether the step is stateless and never raises, whatever a record contains."""
    return class_name(step) in TOTAL


def class_name(step: object) -> str:
    """Import path of the class of a step; for a class of this package, the public path."""
    module = type(step).__module__
    if module.startswith("streampair."):
        module = ".".join(module.split(".")[:2])
    return f"{module}.{type(step).__qualname__}"


def walk(
    steps: MutableMapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, MutableMapping[str, Any], str]]:
    """Yield (path, step, mapping that contains it, key) of all steps in order, nested ones too."""
    for name, step in list(steps.items()):
        path = f"{prefix}{name}"
        if isinstance(step, compose.Pipeline):
            yield from walk(step.steps, f"{path}/")
        elif isinstance(step, compose.TransformerUnion):
            yield from walk(step.transformers, f"{path}/")
        else:
            yield path, step, steps, name


def private_inside(step: object) -> str | None:
    """Class name of a private learner among the attributes of a wrapper, two levels deep; None if none."""
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


def check_pipeline(
    model: Any, *, trust_preprocessing: bool = False, one_by_one: bool = False
) -> tuple[str, ...]:
    """Raise if a private learner's guarantee would not hold in a pipeline.

    Parameters
    ----------
    model
        A private learner, or a `river.compose.Pipeline` that ends in one.
    trust_preprocessing
        Accept steps in front of it that may learn from the stream, or raise. The guarantee is then void.
    one_by_one
        Whether records are given one by one, and `learn_null` of the learner is called for each record on
        which a step raises, as a lane does. Steps that may raise are then accepted.

    Returns
    -------
    tuple
        Why the guarantee is void, one sentence each; empty if it holds.

    Raises
    ------
    PrivacyError
        If no step is private, a private one is not the last or is inside a wrapper, or a step in front of it
        is not known to be a function of one record, or may raise.

    Notes
    -----
    Accepted steps are `Bounds`, `UnitBall`, `OneHot`, `Hashing`, `RandomFourier` and `Guarded` of
    `streampair.preprocessing`, which are tested to never raise. Inside `Guarded`, and in a lane, also River's
    `Select`, `SelectType`, `Discard`, `Renamer`, `Prefixer`, `Suffixer`, `Binarizer`, `Normalizer`,
    `PolynomialExtender`, `FeatureHasher` with a seed, and `FuncTransformer`, whose function is assumed to
    depend on one record alone. The check cannot detect what was fitted before the pipeline was built (bounds
    measured on the stream, a function with a memory), what is done with the scores afterwards (a running
    calibration, a threshold chosen on the stream, early stopping), or that the stream is fed more than once.
    The control flow of a lane depends on metadata alone (docs/privacy 8).

    Examples
    --------
    >>> from river import compose, preprocessing
    >>> from streampair import auc, privacy
    >>> from streampair.preprocessing import Bounds, Guarded
    >>> privacy.check_pipeline(Bounds({"age": (0, 120)}) | auc.PairFTRL(horizon=1000))
    ()
    >>> scaled = preprocessing.StandardScaler() | auc.PairFTRL(horizon=1000)
    >>> privacy.check_pipeline(scaled)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    streampair.errors.PrivacyError: StandardScaler (at 'StandardScaler') may learn from the stream...
    >>> privacy.check_pipeline(compose.Select("age") | auc.PairFTRL(horizon=1000))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    streampair.errors.PrivacyError: Select (at 'Select') raises on some records...
    >>> privacy.check_pipeline(Guarded(compose.Select("age")) | auc.PairFTRL(horizon=1000))
    ()
    """
    learner, front = _taken_apart(model)
    name = type(learner).__name__
    learns = [(path, type(step).__name__) for path, step in front if not is_stateless(step)]
    raises = [
        (path, type(step).__name__)
        for path, step in front
        if is_stateless(step) and not (one_by_one or is_total(step))
    ]
    if learns and not trust_preprocessing:
        raise _learns(*learns[0], name)
    if raises and not trust_preprocessing:
        path, kind = raises[0]
        raise PrivacyError(
            f"{kind} (at {path!r}) raises on some records in front of the private learner {name}: such a "
            "record takes no slot, and in learn_many none of those beside it does",
            fix=f"wrap it, streampair.preprocessing.Guarded({kind}(...)), or leave it out: {name} scales by "
            "bounds= and ignores what is not in features=",
        )
    return (
        *(f"{kind} learns from the stream in front of {name}" for _, kind in learns),
        *(f"{kind} raises on some records in front of {name}" for _, kind in raises),
    )


def pipeline_report(model: Any) -> PrivacyReport:
    """Return the report of a pipeline's private learner; void if a step in front of it breaks the guarantee.

    A learner does not know the steps in front of it: its own report, `model[-1].privacy`, is about records as
    they reach it. A lane checks its pipeline itself; elsewhere, use this report.

    Parameters
    ----------
    model
        A private learner, or a `river.compose.Pipeline` that ends in one.

    Returns
    -------
    PrivacyReport

    Raises
    ------
    PrivacyError
        If no step is private, or a private one is not the last or is inside a wrapper.

    Examples
    --------
    >>> from river import preprocessing
    >>> from streampair import auc, privacy
    >>> scaled = preprocessing.StandardScaler() | auc.PairFTRL(horizon=1000, features=["age"])
    >>> scaled[-1].privacy.guarantee
    'exact accounting of every release, in Gaussian differential privacy'
    >>> privacy.pipeline_report(scaled).guarantee
    'void (StandardScaler learns from the stream in front of PairFTRL)'
    """
    reasons = check_pipeline(model, trust_preprocessing=True)
    learner, _ = _taken_apart(model)
    report: PrivacyReport = learner.privacy
    if not reasons:
        return report
    known = [report.guarantee.removeprefix("void (").removesuffix(")")] if report.kind == "void" else []
    return dataclasses.replace(report, kind="void", guarantee=f"void ({'; '.join([*known, *reasons])})")


def _taken_apart(model: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the private learner, and the (path, step) pairs in front of it."""
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
                f"{type(step).__name__} wraps the private learner {inner}: which records it learns, and how "
                "often, is then not controlled by its accountant",
                fix=f"use {inner} as the last step, without a wrapper",
            )
    if not is_private(learner):
        raise PrivacyError(
            "there is no private learner in the model", fix="end it with one, for example auc.PairFTRL"
        )
    return learner, found[:-1]


def _learns(path: str, kind: str, name: str) -> PrivacyError:
    if kind == "FeatureHasher":
        return PrivacyError(
            f"{kind} (at {path!r}) has no seed: it hashes differently in every process, in front of "
            f"the private learner {name}",
            fix="use streampair.preprocessing.Hashing, which also keeps the zeros",
        )
    return PrivacyError(
        f"{kind} (at {path!r}) may learn from the stream in front of the private learner {name}: "
        "its output then depends on every earlier record, and the guarantee does not hold",
        fix="scale by declared public bounds with streampair.preprocessing.Bounds, or with bounds= "
        f"and warmup= of {name}, and declare categories with OneHot; trust_preprocessing=True accepts the "
        "loss of the guarantee",
    )
