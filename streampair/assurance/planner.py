"""Planner: forecasts the noise and the accuracy of each mechanism before there is any data.

The noise is that of the configured learners. The accuracy is that of a reference task
(`streampair.assurance.reference_tasks`), which needs no data: the mean, and the band, of simulated runs whose
features, bounds and noise are drawn. Real features are not normal, so the accuracy on a real stream differs;
the order of the mechanisms, and the number of records from which each is useful, carry over.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair import auc as auc_learners
from streampair import metric as metric_learners
from streampair import ranking as ranking_learners
from streampair.assurance.reference_tasks import Built, Distances, Reference, Relevances, TwoClasses
from streampair.assurance.simulated_runs import RUNS
from streampair.base.private import PrivateLearner
from streampair.errors import ConfigError, PrivacyWarning
from streampair.privacy.accounting import doubts, planned_mu
from streampair.privacy.mechanism_options import MechanismOptions, PairGradients, SecondMoments
from streampair.privacy.mechanisms.dp_forest import worthwhile
from streampair.privacy.mechanisms.ftrl import FTRL
from streampair.privacy.mechanisms.output_perturbation import LONGEST_OUTPUT
from streampair.privacy.mechanisms.second_moments import MOST_FEATURES
from streampair.privacy.user_level import EntityLimit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ComponentsForecast", "Forecast", "PrivacyPlan", "moment_noise", "plan", "setting_text"]

USEFUL = 0.02
"""Mean loss at which a mechanism counts as useful."""

BAND = (0.1, 0.9)
"""Quantiles of the simulated runs between which a forecast is."""

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
COMPONENTS = (32, 64, 128, 256, 512)
# Loss of AUC of `RandomFourier` with as much noise as signal: two thirds of the runs on seven data sets were
# below it. The loss grows with the root of the noise (benchmarks/components.py).
_LOSS_OF_COMPONENTS = 0.05
_MOST_RECORDS = 10**8
# Beyond it the noise of gradients is that of the plan without a horizon: 4 % more, and only one fit.
_LONGEST_FIT = 4096


@dataclass(frozen=True)
class Forecast:
    """Forecast for one mechanism.

    Parameters
    ----------
    mechanism, settings
        Name of the learner's class, and its parameters.
    noise
        Standard deviation of the mechanism's noise in all coordinates of the weights, relative to the signal:
        1 means as much noise as signal. The noise of the warm-up is not in it.
    auc, loss
        Mean AUC of the simulated runs (of a ranking: share of pairs in order; of a metric: of distances in
        order), and its difference to that without privacy from as many records.
    auc_band, loss_band
        The same of the runs at 10 and at 90 %: four of five are between them.
    useful_from
        Records from which the mean loss is at most .02, or the stated level is reached; None: beyond 1e8, or
        beyond the longest stream that the mechanism accepts.
    curve
        (epsilon, mean AUC), the other settings equal.
    family
        Module of the class: "auc", "ranking" or "metric".
    """

    mechanism: str
    settings: dict[str, Any]
    noise: float
    auc: float
    loss: float
    auc_band: tuple[float, float]
    loss_band: tuple[float, float]
    useful_from: int | None
    curve: tuple[tuple[float, float], ...]
    family: str = "auc"

    def call(self) -> str:
        """The constructor call, as an expression."""
        arguments = (
            f"{k}=privacy.{setting_text(v)}()" if isinstance(v, MechanismOptions) else f"{k}={v!r}"
            for k, v in self.settings.items()
        )
        return f"{self.family}.{self.mechanism}({', '.join(arguments)})"


@dataclass(frozen=True)
class ComponentsForecast:
    """Forecast for `preprocessing.RandomFourier` in front of `auc.PairFTRL`.

    Parameters
    ----------
    components
        Number of components.
    noise
        Norm of the noise in their second moments, in units of the mean eigenvalue.
    loss
        Loss of AUC by the noise: ``.05 sqrt(noise)``. Two thirds of the runs on seven data sets were below
        it; single runs were between 0 and three times as much.
    pays_from
        Records from which the loss is at most the guessed gain over a linear model; None: beyond 1e8.
    """

    components: int
    noise: float
    loss: float
    pays_from: int | None


@dataclass(frozen=True)
class PrivacyPlan:
    """Result of `plan`: forecasts of the mechanisms, in decreasing order of mean AUC.

    `trees_from` is the number of records from which the leaf statistics of `auc.PrivateForest` exceed their
    noise; None: beyond 1e8, or the family has no forest. `doubts` are warnings about the budget.
    """

    n: int
    d: int
    epsilon: float
    delta: float
    positive_rate: float
    mu: float
    auc_best: float
    auc_without_privacy: float
    forecasts: tuple[Forecast, ...]
    family: str = "auc"
    measure: str = "AUC"
    stated: float | None = None
    gain: float = 0.0
    components: tuple[ComponentsForecast, ...] = ()
    trees_from: int | None = None
    doubts: tuple[str, ...] = ()
    one_hot: tuple[int, ...] = ()

    @property
    def best(self) -> Forecast:
        """The mechanism with the highest mean AUC."""
        return self.forecasts[0]

    @property
    def best_without_horizon(self) -> Forecast | None:
        """The best mechanism without a horizon; None if the records end before any has released a model."""
        endless = (f for f in self.forecasts if "horizon" not in f.settings)
        return next((f for f in endless if math.isfinite(f.noise)), None)

    @property
    def best_components(self) -> ComponentsForecast | None:
        """Largest number of random Fourier components that pay for `n` records, at the guessed gain."""
        paying = [c for c in self.components if c.pays_from is not None and c.pays_from <= self.n]
        return paying[-1] if paying else None

    def advice(self) -> list[str]:
        """Recommendations, a line each."""
        lines = [f"warning: {text}" for text in self.doubts]
        lines.append(f"recommended: {self.best.call()}")
        endless = self.best_without_horizon
        if endless is not None and endless is not self.best:
            lines.append(f"without a horizon: {endless.call()}")
        if self.trees_from is not None:
            lines.append(f"for a non-linear boundary: auc.PrivateForest, from {self.trees_from:,} records on")
        if self.components:
            listed = ", ".join(
                f"{c.components} from {'-' if c.pays_from is None else f'{c.pays_from:,}'}"
                for c in self.components
            )
            most = self.best_components
            lines += [
                f"RandomFourier pays from so many records on, if it gains {self.gain:g} without privacy, by "
                f"components: {listed}",
                f"for {self.n:,} records use "
                + (
                    f"up to {most.components} components, if the boundary is not linear"
                    if most
                    else "the linear features"
                ),
            ]
        return lines

    def __str__(self) -> str:
        lines = [
            f"{self.n} records, {self.d} features, {self.positive_rate:g} positive; epsilon {self.epsilon:g} "
            f"at delta {self.delta:.3g} (mu {self.mu:.4g})",
            f"expected {self.measure} without privacy {self.auc_without_privacy:.3f}",
            f"{'mechanism':<52}{'noise':>8}{'AUC':>8}{'loss':>8}{'10 to 90 %':>18}{'useful from':>14}",
        ]
        for f in self.forecasts:
            start = "-" if f.useful_from is None else f"{f.useful_from:.0e}"
            name = f.mechanism + "".join(
                f", {k}={setting_text(v)}" for k, v in f.settings.items() if k in _TABLE_SETTINGS
            )
            band = "{:.3f} to {:.3f}".format(*f.loss_band)
            lines.append(f"{name:<52}{f.noise:>8.2g}{f.auc:>8.3f}{f.loss:>8.3f}{band:>18}{start:>14}")
        return "\n".join([*lines, *self.advice()])


_TABLE_SETTINGS = ("horizon", "mechanism", "l2")  # settings in the table


def setting_text(value: Any) -> str:
    """Return a setting of a forecast as text; a mechanism, whose options are the defaults, by its class."""
    return type(value).__name__ if isinstance(value, MechanismOptions) else str(value)


# ---- mechanisms ----------------------------------------------------------------------------------------

Maker = Callable[[int, Any], dict[str, Any]]


@dataclass(frozen=True)
class _Row:
    """A mechanism of a family: its class, and its settings for n records of a reference task.

    A row whose class lacks a parameter is left out.
    """

    mechanism: str
    settings: Maker


@dataclass(frozen=True)
class _Family:
    """The learners of a module, and their reference task."""

    module: Any
    task: Callable[[int, float, float, tuple[int, ...]], Reference]
    rows: tuple[_Row, ...]


_PAIR_FTRL = (
    _Row("PairFTRL", lambda n, task: {"horizon": n}),
    _Row("PairFTRL", lambda n, task: {}),
    _Row("PairFTRL", lambda n, task: {"horizon": n, "mechanism": PairGradients()}),
)
_ON_PAIR_C = _Row("OnPairC", lambda n, task: {"horizon": n})

_FAMILIES: dict[str, _Family] = {
    "auc": _Family(
        auc_learners,
        lambda d, best, rate, one_hot: TwoClasses(d, best, one_hot, rate),
        (
            *_PAIR_FTRL,
            # A ridge term proportional to the share of pairs that have a gradient.
            _Row(
                "OnPairStrC",
                lambda n, task: {"horizon": n, "l2": float(f"{0.4 * task.rate * (1 - task.rate):.2g}")},
            ),
            _ON_PAIR_C,
        ),
    ),
    "ranking": _Family(
        ranking_learners,
        lambda d, best, rate, one_hot: Relevances(d, best, one_hot),
        (*_PAIR_FTRL, _Row("OnPairStrC", lambda n, task: {"horizon": n, "l2": 0.1}), _ON_PAIR_C),
    ),
    "metric": _Family(
        metric_learners,
        lambda d, best, rate, one_hot: Distances(d, best, one_hot),
        (*_PAIR_FTRL, _Row("OnPairStrC", lambda n, task: {"horizon": n, "l2": 0.1}), _ON_PAIR_C),
    ),
}


@dataclass(frozen=True)
class _Search:
    """The forecasts of a family on a reference task, with an optional unit of privacy."""

    family: _Family
    task: Reference
    entity: EntityLimit | None

    def rows(self) -> list[_Row]:
        """The rows whose class has all of their parameters."""

        def takes(row: _Row) -> bool:
            cls = getattr(self.family.module, row.mechanism)
            return row.settings(1, self.task).keys() <= inspect.signature(cls).parameters.keys()

        return [row for row in self.family.rows if takes(row)]

    def built(self, row: _Row, settings: dict[str, Any], n: int, eps: float, delta: float) -> Built | None:
        """Return a mechanism of a row; None if it cannot run."""
        try:
            return self.build(row, settings, n, eps, delta)
        except ConfigError:
            return None

    def build(self, row: _Row, settings: dict[str, Any], n: int, eps: float, delta: float) -> Built | None:
        """As `built`, and raises the error of a learner that refuses its settings."""
        params = dict(settings)
        cls = getattr(self.family.module, row.mechanism)
        if row.mechanism.startswith("OnPair") and n > LONGEST_OUTPUT:
            return None
        if self.entity is not None:
            params["entity"] = self.entity
        names = [f"x{i}" for i in range(self.task.d)]

        def made(**changed: Any) -> PrivateLearner:
            model: PrivateLearner = cls(epsilon=eps, delta=delta, **{**params, **changed})
            return model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # these horizons are only tried
            return self._build(made, params, names, n)

    def _build(
        self, made: Callable[..., PrivateLearner], params: dict[str, Any], names: list[str], n: int
    ) -> Built | None:
        if n > _LONGEST_FIT and "horizon" in params:
            # A learner that waits for its features has fitted no plan.
            settings = made(entity=None).settings_with(features=names, entity=self.entity)
            if isinstance(settings.mechanism, FTRL):
                params["warmup"] = settings.warmup
                del params["horizon"]
        model = made(features=names)
        run = model.run
        assert run is not None
        warmup = run.settings.warmup
        if n <= warmup:
            return None
        # Standardised records have norm 1; with bounds of four standard deviations the norm is smaller.
        reach = 1.0 if warmup else min(1.0, math.sqrt(self.task.d) / 4.0)
        return Built(run.state.plan, None if run.warmup is None else run.warmup.plan, n - warmup, reach)

    def levels(self, built: Built | None, n: int) -> NDArray[np.float64]:
        """Levels of the simulated runs, at most those without privacy; .5 if the mechanism cannot run."""
        return np.full(RUNS, 0.5) if built is None else np.minimum(self.task.levels(built, n), self.best(n))

    def best(self, n: int) -> float:
        """Expected level from n records without privacy."""
        return self.task.level(math.sqrt(self.task.sampling(n)))

    def useful_from(self, row: _Row, eps: float, delta: float, stated: float | None = None) -> int | None:
        """The smallest of 1, 1.5, 2, 3, 5, 7 times a power of ten from which the loss is at most `USEFUL`.

        With `stated`: from which this level is expected.
        """
        most = LONGEST_OUTPUT if row.mechanism.startswith("OnPair") else _MOST_RECORDS

        def useful(n: int) -> bool:
            found = self.levels(self.built(row, row.settings(n, self.task), n, eps, delta), n)
            return float(found.mean()) >= (self.best(n) - USEFUL if stated is None else stated)

        return _first(useful, most)


def _first(holds: Callable[[int], bool], most: int = _MOST_RECORDS) -> int | None:
    """The smallest of 1, 1.5, 2, 3, 5, 7 times a power of ten from which something holds."""
    grid = [int(k * 10**p) for p in range(2, 8) for k in (1, 1.5, 2, 3, 5, 7)] + [_MOST_RECORDS]
    grid = [n for n in grid if n <= most]
    low, high = 0, len(grid)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(grid[middle]) else (middle + 1, high)
    return grid[low] if low < len(grid) else None


def _components(n: int, eps: float, delta: float, gain: float) -> Iterator[ComponentsForecast]:
    """Forecasts of random Fourier components in front of PairFTRL with a horizon.

    They are strongly correlated, so the reference task, whose features are independent, does not apply.
    """
    for count in COMPONENTS:

        def loss(records: int, count: int = count) -> float:
            return min(_LOSS_OF_COMPONENTS * math.sqrt(moment_noise(count, records, eps, delta)), 0.5)

        def pays(records: int, loss: Callable[[int], float] = loss) -> bool:
            return loss(records) <= gain

        yield ComponentsForecast(count, moment_noise(count, n, eps, delta), loss(n), _first(pays))


def moment_noise(d: int, n: int, eps: float, delta: float) -> float:
    """Norm of the noise in the second moments of `auc.PairFTRL`, in units of their mean eigenvalue.

    Parameters
    ----------
    d
        Number of features of a record of norm 1.
    n
        Number of records, the declared horizon.
    eps, delta
        Budget of a record.
    """
    family = _FAMILIES["auc"]
    search = _Search(family, family.task(d, 0.85, 0.5, ()), None)
    # For a short horizon the default mechanism is gradients, whose plan has no moments.
    built = search.built(family.rows[0], {"horizon": n, "mechanism": SecondMoments()}, n, eps, delta)
    known = 0.0 if built is None else built.plan.information(built.steps)
    # A symmetric matrix of noise has a norm of about sqrt(2 d) std, and records have norm 1.
    return d * math.sqrt(2.0 * d / known) if known else math.inf


def _counted(name: str, value: float) -> int:
    """Return a count as an integer; accepts a float such as 1e6."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer():
        raise ConfigError(f"{name} is {value!r}", fix="give a whole number, such as 20 or 1e6")
    return int(value)


def _checked_columns(one_hot: Sequence[int], d: int) -> tuple[int, ...]:
    columns = tuple(_counted("one_hot", size) for size in one_hot)
    if min(columns, default=1) < 1 or sum(columns) > d:
        raise ConfigError(
            f"one_hot is {one_hot!r}, and d {d}",
            fix="give the number of columns of each string field; d is the number of all features",
        )
    return columns


def plan(
    n: float,
    d: float,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    positive_rate: float = 0.5,
    auc: float = 0.85,
    family: str = "auc",
    level: float | None = None,
    entity: EntityLimit | None = None,
    gain: float = 0.05,
    one_hot: Sequence[int] = (),
) -> PrivacyPlan:
    """Forecast the accuracy of each private learner of a family on a stream, before it is seen.

    No data is read: choosing settings on a private stream would cost privacy.

    Parameters
    ----------
    n, d
        Numbers of records and features: integers, such as 20 or 1e6.
    epsilon, delta
        Budget of a record; delta None is ``1 / n``.
    positive_rate
        Guessed share of positives, for two classes.
    auc
        Guessed AUC of the best linear scorer; for the family "ranking" its share of pairs in order, for
        "metric" the share of distances in order of the best metric.
    family
        Module of the learners: "auc", "ranking" or "metric".
    level
        Level that the model should reach, in the same measure; `useful_from` is then the number of records
        from which it is expected to. None: a loss of .02 by the noise.
    entity
        Bound of the contributions of an entity whose records are protected together; None: each record is
        protected by itself.
    gain
        Guessed gain of AUC by random Fourier components over a linear model without privacy; 0 for a linear
        boundary.
    one_hot
        Number of columns of each text field (`preprocessing.OneHot`), of which `d` counts all.

    Raises
    ------
    ConfigError
        If a number is out of range, there is no such family, or no learner of it can keep this budget.

    Examples
    --------
    >>> from streampair import privacy
    >>> found = privacy.plan(20_000, 20, epsilon=1.0)
    >>> found.best.call()
    'auc.PairFTRL(epsilon=1.0, delta=5e-05, horizon=20000)'
    >>> found.best.loss < 0.01
    True
    """
    n, d = _counted("n", n), _counted("d", d)
    if family not in _FAMILIES:
        raise ConfigError(f"family is {family!r}", fix=f"give one of {', '.join(map(repr, _FAMILIES))}")
    for name, value, least, most in (
        ("n", n, 10, _MOST_RECORDS),
        ("d", d, 1, 256 if family == "metric" else 10_000),
        ("positive_rate", positive_rate, 1e-6, 1 - 1e-6),
        ("auc", auc, 0.501, 0.9999),
        ("level", auc if level is None else level, 0.5, auc),
        ("gain", gain, 0.0, 0.5),
    ):
        if not least <= value <= most:
            kind = "whole number" if name in ("n", "d") else "number"
            raise ConfigError(f"{name} is {value!r}", fix=f"give a {kind} from {least:g} to {most:g}")
    chosen = 1.0 / n if delta is None else delta
    mu = planned_mu(epsilon, chosen)
    learners = _FAMILIES[family]
    task = learners.task(d, auc, positive_rate, _checked_columns(one_hot, d))
    search = _Search(learners, task, entity)
    reachable = search.best(n)
    forecasts = []
    for row in search.rows():
        settings = row.settings(n, task)
        found = {e: search.built(row, settings, n, e, chosen) for e in {*EPSILONS, epsilon}}
        levels = {e: search.levels(built, n) for e, built in found.items()}
        params = {"epsilon": epsilon, "delta": chosen, **settings}
        if entity is not None:
            params["entity"] = entity
        low, high = np.quantile(levels[epsilon], BAND).tolist()
        built = found[epsilon]
        forecasts.append(
            Forecast(
                row.mechanism,
                params,
                math.inf if built is None else math.sqrt(task.error(built)),
                float(levels[epsilon].mean()),
                reachable - float(levels[epsilon].mean()),
                (low, high),
                (reachable - high, reachable - low),
                search.useful_from(row, epsilon, chosen, level),
                tuple((e, float(levels[e].mean())) for e in EPSILONS),
                family,
            )
        )
    if all(math.isinf(each.noise) for each in forecasts):  # none runs: say why, if one says it
        for row in search.rows():
            search.build(row, row.settings(n, task), n, epsilon, chosen)
    forecasts.sort(key=lambda f: -f.auc)
    bent = family == "auc" and entity is None
    return PrivacyPlan(
        n,
        d,
        epsilon,
        chosen,
        positive_rate,
        mu,
        auc,
        reachable,
        tuple(forecasts),
        family,
        task.measure,
        level,
        gain,
        tuple(_components(n, epsilon, chosen, gain)) if bent else (),
        _first(lambda n: worthwhile(epsilon, chosen, n, features=d)) if bent and d <= MOST_FEATURES else None,
        tuple(doubts(epsilon, chosen, n)),
        task.one_hot,
    )
