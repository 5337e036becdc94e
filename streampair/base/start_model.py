"""A model that a private learner begins with: its weights, how it scores, and what it adds to the account."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import vectors
from streampair.privacy.mechanisms.base import Link
from streampair.privacy.mechanisms.start_moments import StartMoments
from streampair.privacy.report import StartAccount
from streampair.records.features import Design, StartVectors
from streampair.records.random_trees import RandomTreeDesign, fields_of, marks_of

__all__ = ["StartModel"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StartModel:
    """A linear model whose weights are public, or released by an account that is added.

    Parameters
    ----------
    names
        Its features.
    weights
        One each, (k,).
    bounds
        Of a private learner's model: (low, high) of each feature, which scale it to [-1, 1]. None: the
        weights multiply raw values.
    mean, factor
        Of the standardisation of scaled values, (k,) each; None: there is none.
    cap
        Bound of standardised values; infinity: none.
    centre
        What is taken from raw values before the weights multiply them, (k,); None: nothing.
    moments
        Released second moments that the weights were computed from; None: there are none.
    leaves
        Of a private forest: weights of the leaves, (trees, leaves), besides those of the features, in order.
        None: it is no forest.
    link
        From a score to a probability; None: it gives no probabilities.
    account
        What it adds to the account.
    """

    names: tuple[Hashable, ...]
    weights: Array
    bounds: tuple[tuple[float, float], ...] | None
    mean: Array | None
    factor: Array | None
    cap: float
    link: Link | None
    account: StartAccount
    centre: Array | None = None
    moments: StartMoments | None = None
    leaves: Array | None = None

    def _scaling(self) -> Array | None:
        """Scale, shift, mean and factor, (4, k); None: weights multiply raw values."""
        if self.bounds is None:
            return None
        design = Design(self.names, dict(zip(self.names, self.bounds, strict=True)))
        order = [design.index[name] for name in self.names]
        scaling = design.scaling[:, order].copy()
        if self.mean is not None and self.factor is not None:
            scaling[2], scaling[3] = self.mean, self.factor
        return scaling

    def _places(self, names: Sequence[Hashable]) -> list[int]:
        index = {name: i for i, name in enumerate(names)}
        return [index[name] for name in self.names]

    def weights_of(self, names: Sequence[Hashable]) -> Array:
        """Weights (d,) of a learner's features, 0 for those that the model does not know.

        Of a forest: of features, leaves and bins.
        """
        out = np.zeros(len(names))
        out[self._places(names)] = self.weights
        if self.leaves is None:
            return out
        return np.concatenate((out, self.leaves.ravel(), np.zeros(marks_of(fields_of(names)))))

    def vectors_of(self, names: Sequence[Hashable]) -> StartVectors | Design:
        """The vectors of a learner's records that `weights_of` multiplies."""
        scaling = self._scaling()
        if self.leaves is not None:
            assert self.mean is not None
            assert self.factor is not None
            trees, leaves = self.leaves.shape
            bounds = dict(zip(self.names, self.bounds or (), strict=True))
            design = RandomTreeDesign(self.names, bounds, trees, leaves.bit_length() - 1)
            design.cap = self.cap
            design.standardise(self.mean, self.factor)
            return design
        if scaling is None:
            if self.centre is None:
                return StartVectors(None)
            centre = np.zeros(len(names))
            centre[self._places(names)] = self.centre
            return StartVectors(None, centre=centre)
        out = np.zeros((4, len(names)))
        out[:, self._places(names)] = scaling
        return StartVectors(out, self.mean is not None, self.cap)

    def begin_weights(self, names: Sequence[Hashable], slope: Array, radius: float) -> Array:
        """The weights in a learner's coordinates, in the ball of its radius.

        Parameters
        ----------
        names
            Features of the learner.
        slope
            Derivative of each coordinate of a design in its feature, (d,).
        radius
            R. Longer weights are shortened, which keeps their ranking.

        Notes
        -----
        A score is linear in raw values, up to a constant, which ranks nothing, and the cuts at the cap and
        at the unit ball, which differ between the model and the learner.
        """
        scaling = self._scaling()
        raw = self.weights if scaling is None else self.weights * scaling[0] * scaling[3]
        out = np.zeros(len(names))
        places = self._places(names)
        out[places] = raw / slope[places]
        largest = float(np.abs(out).max(initial=0.0))
        if not 0.0 < largest < math.inf:
            return np.zeros(len(names))
        unit = out / largest
        length = math.sqrt(float(vectors.dot(unit, unit)))
        # A little inside the ball, so that rounding does not leave it.
        return unit * min(largest, radius * (1.0 - 1e-12) / length)

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays."""
        account = self.account
        return {
            "names": list(self.names),
            "weights": self.weights.copy(),
            "bounds": None if self.bounds is None else np.array(self.bounds),
            "moments": None
            if self.mean is None or self.factor is None
            else np.array([self.mean, self.factor]),
            "cap": None if self.cap == math.inf else self.cap,
            **({} if self.centre is None else {"centre": self.centre.copy()}),
            "link": None if self.link is None else [self.link.slope, self.link.offset],
            "account": [account.model, account.mu, account.kind, account.public_before],
            **({} if not account.assumed else {"assumed": list(account.assumed)}),
            **({} if self.moments is None else self.moments.to_state()),
            **({} if self.leaves is None else {"leaf_weights": self.leaves.copy()}),
        }

    @classmethod
    def from_state(cls, saved: Mapping[str, Any]) -> StartModel:
        """What `to_state` gave; ValueError and the like if it cannot be that."""
        names, bounds, moments = saved["names"], saved["bounds"], saved["moments"]
        shape, centre = (len(names),), saved.get("centre")
        if saved["weights"].shape != shape or (moments is not None and moments.shape != (2, *shape)):
            raise ValueError("a start model of another shape")
        if centre is not None and centre.shape != shape:
            raise ValueError("a start model of another shape")
        model, mu, kind, public = saved["account"]
        if (mu is not None and not 0.0 <= mu < math.inf) or kind not in ("holds", "unvouched"):
            raise ValueError("an account that no model has")
        return cls(
            names=tuple(names),
            weights=saved["weights"].copy(),
            bounds=None
            if bounds is None
            else tuple((float(low), float(high)) for low, high in bounds.reshape(len(names), 2)),
            mean=None if moments is None else moments[0].copy(),
            factor=None if moments is None else moments[1].copy(),
            cap=math.inf if saved["cap"] is None else float(saved["cap"]),
            link=None if saved["link"] is None else Link(*map(float, saved["link"])),
            account=StartAccount(
                str(model),
                None if mu is None else float(mu),
                kind,
                bool(public),
                tuple(map(str, saved.get("assumed", ()))),
            ),
            centre=None if centre is None else centre.copy(),
            moments=StartMoments.from_state(saved) if "table" in saved else None,
            leaves=saved["leaf_weights"].copy() if "leaf_weights" in saved else None,
        )

    def same(self, other: StartModel | None) -> bool:
        """Whether the other one is the same to the last bit."""
        if other is None:
            return False
        ours, theirs = self.to_state(), other.to_state()
        return ours.keys() == theirs.keys() and all(
            np.array_equal(ours[name], theirs[name])
            if isinstance(ours[name], np.ndarray)
            else type(ours[name]) is type(theirs[name]) and ours[name] == theirs[name]
            for name in ours
        )
