"""Second moments of a table that a learner begins with, and the test that drops them.

A learner of the moments of a stream may begin with those of a table of the same features, which
`streampair.history` has released. It pools them with its own, and compares the two at each of its releases:
once they differ by more than noise and sampling explain, the table's are dropped for good. All of it is a
function of releases (docs/privacy 4.6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from streampair.kernels import numerics, symmetric, vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "MOST_CENTRE",
    "MOST_ROWS",
    "RUNS_A_DROP",
    "Cuts",
    "StartMoments",
    "check_release",
    "largest_eigenvalue",
    "most_squares",
]

MOST_CENTRE = 0.98
"""Largest released mean of the labels, in size: beyond it a class is too rare to be estimated."""

MOST_ROWS = 2**31
"""Sums of fewer rows fit into 64 bits: a product is at most 2^32."""

RUNS_A_DROP = 10_000
"""Of so many runs on the table's own distribution at most one drops its moments, over all of its releases."""

_LN2 = 0.6931471805599453

# The numbers of a release are far within these; beyond them squares and quotients overflow.
_MOST_SIGMA = 1e30
_MOST_SCALE = 1e50


def check_release(rows: int, sigma: float, sample: int, sample_sigma: float, centre: float) -> None:
    """Raise ValueError if these, of `StartMoments`, cannot be the numbers of a release."""
    if not (0 < rows < MOST_ROWS and 0 < sample < MOST_ROWS and -MOST_CENTRE <= centre <= MOST_CENTRE):
        raise ValueError("numbers that no release has")
    if not all(1.0 / _MOST_SIGMA < each < _MOST_SIGMA for each in (sigma, sample_sigma)):
        raise ValueError("noise that no release has")


def most_squares(cells: float, look: int, tests: int = 2) -> float:
    """What the squares of so many standard normals add up to at most, in look `look` = 1, 2, ... of a run.

    It is exceeded with a probability of at most `1 / (tests RUNS_A_DROP look (look + 1))`, which over as many
    tests in each look adds up to one run in `RUNS_A_DROP`. `cells` need not be whole: a gamma distribution.

    Notes
    -----
    Chernoff's bound: a sum above `p r`, r > 1, has at most the probability `exp(-p (r - 1 - ln r) / 2)`. The
    root of `r = 1 + c + ln r` is approached from above, so every iterate holds the level. The logarithm is
    that of the kernels: the decision is the same on every processor.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.start_moments import most_squares
    >>> [round(most_squares(cells, 1)) for cells in (1, 20, 210)]
    [26, 66, 322]
    """
    x = (tests * RUNS_A_DROP * look * (look + 1)).bit_length() * _LN2
    c = 2.0 * x / cells
    ratio = 1.0 + math.sqrt(2.0 * c) + c  # above the root: Laurent and Massart (2000)
    for _ in range(30):
        ratio = 1.0 + c + float(numerics.log_positive(ratio))
    return cells * ratio


def largest_eigenvalue(matrix: Floats) -> float:
    """The largest eigenvalue of a symmetric matrix (d, d), at least 0."""
    values = np.empty(len(matrix))
    symmetric.eigen(matrix.copy(), values)
    return max(float(values.max()), 0.0)


def _squares(values: Floats) -> float:
    flat = np.ascontiguousarray(values).ravel()
    return float(vectors.dot(flat, flat))


class Cuts(NamedTuple):
    """How the leaves and bins of a private forest cut the records.

    Parameters
    ----------
    leaves
        Number of leaves of all trees. So many counts come first, then as many sums of labels, then bins.
    units
        What a record counts in each cell: in the positives of each leaf, the negatives, and each bin.
    number
        Number of trees and of fields: a record is in at most one cell of each.
    """

    leaves: int
    units: Floats
    number: int

    def cells(self, means: Floats) -> Floats:
        """Means of the cells, from those of counts, labels and bins: a rotation, so noise keeps its std."""
        counts, labels = means[: self.leaves], means[self.leaves : 2 * self.leaves]
        half = math.sqrt(0.5)
        return np.concatenate((half * (counts + labels), half * (counts - labels), means[2 * self.leaves :]))


@dataclass(frozen=True, eq=False)
class StartMoments:
    """What a table's two stages have released (docs/privacy 10.7): all of it public.

    Parameters
    ----------
    second, cross
        Released means of `x x'`, (d, d), and of `weight (y - centre) x`, (d,), over the rows of the second
        stage, with noise.
    rows
        Number of these rows.
    sigma
        Noise std of each coordinate of their sums, packed.
    mean, factor, centre, cap
        By which these rows were standardised: mean and factor of the scaled features, (d,), mean of the
        labels, bound of standardised values.
    sample, sample_sigma
        Rows that these were released from, and noise std of the sums of their features and labels.
    leaves
        Of a private forest: released means of its leaves and bins, as the coordinates of `DPForestPlan`
        behind the second moments, with noise of `sigma` in their sums. None: there are none.

    Notes
    -----
    The learner takes the standardisation of the table, so that both moments are of the same coordinates: a
    linear map between two standardisations would be wrong by what each has clipped.
    """

    second: Floats
    cross: Floats
    rows: int
    sigma: float
    mean: Floats
    factor: Floats
    centre: float
    cap: float
    sample: int
    sample_sigma: float
    leaves: Floats | None = None

    #: Standard deviations at which standardised values are clipped.
    CAP: Final = 3.0

    @property
    def noise(self) -> float:
        """Variance of the noise in a packed coordinate of the means."""
        return (self.sigma / self.rows) * (self.sigma / self.rows)

    @cached_property
    def _largest(self) -> float:
        return largest_eigenvalue(self.second)

    @property
    def _tests(self) -> int:
        """Number of tests in a look, at most."""
        return 2 if self.leaves is None else 3

    # ---- the test --------------------------------------------------------------------------------------

    def has_means(self, mean: Floats, label: float, noise: float, slots: int) -> bool:
        """Whether a learner's warm-up has found the table's means of features and labels.

        Parameters
        ----------
        mean, label
            Released means of the scaled features, (d,), and of the labels.
        noise
            Variance of their noise.
        slots
            Number of slots that they are the means of.

        Notes
        -----
        The mean of the labels is clipped as that of the table was, which brings two means no farther apart.
        A difference is measured in standard deviations of a record, by the table's release. Its covariance
        is that of the noise and at most `r (1 / slots + 1 / sample)` for the sampling of records, r being
        the largest eigenvalue of the correlations.
        """
        d = len(self.mean)
        label_spread = math.sqrt(1.0 - self.centre * self.centre)
        label = min(max(label, -MOST_CENTRE), MOST_CENTRE)  # the table's is clipped, too
        differences = np.append(mean - self.mean, label - self.centre)
        differences /= np.append(self.cap / (self.CAP * self.factor), label_spread)
        std = self.sample_sigma / self.sample  # of the table's means
        noises = np.full(d + 1, noise + std * std)
        noises /= np.append(self.cap / (self.CAP * self.factor), label_spread) ** 2
        sampled = self._correlated * (1.0 / slots + 1.0 / self.sample)
        return bool(_squares(differences / np.sqrt(noises + sampled)) <= most_squares(d + 1, 1, self._tests))

    @cached_property
    def _correlated(self) -> float:
        """Largest eigenvalue of the correlations of features and label."""
        d = len(self.cross)
        # weight (y - centre) has at most this standard deviation.
        label = math.sqrt(1.0 - self.centre * self.centre) / (1.0 + abs(self.centre))
        spreads = np.sqrt(np.maximum(self.second.diagonal(), self._largest / (100.0 * d)))
        out = np.eye(d + 1)
        out[:d, :d] = self.second / (spreads[:, None] * spreads)
        out[d, :d] = out[:d, d] = self.cross / (spreads * max(label, 1e-3))
        out = np.clip(out, -1.0, 1.0)
        np.fill_diagonal(out, 1.0)
        return largest_eigenvalue(out)

    def is_of(self, second: Floats, cross: Floats, noise: float, records: float, look: int) -> bool:
        """Whether a learner's own means are those of the table's distribution, as far as they show.

        Parameters
        ----------
        second, cross
            As of the class, from the learner's own releases.
        noise
            Variance of the noise in a packed coordinate of them.
        records
            How many records of equal weight would have a mean that varies as much.
        look
            How many times the moments have been compared, with this time: 2 at the first release.

        Notes
        -----
        For records of the unit ball and `|s| <= 1` the covariances of `x x'` and of `s x` are at most r, the
        largest eigenvalue of the mean of `x x'`: `E (x'B x)^2 <= E |B x|^2 <= r |B|^2`. So the squared
        distances over `noise + r (1 / records + 1 / rows)` are at most chi-squared, up to how far a mean of
        so many records is from a normal one.
        """
        d = len(cross)
        variance = noise + self.noise + self._largest * (1.0 / records + 1.0 / self.rows)
        # Frobenius' norm is that of the packed coordinates.
        most = partial(most_squares, look=look, tests=self._tests)
        near = _squares(second - self.second) <= variance * most(d * (d + 1) // 2)
        return bool(near and _squares(cross - self.cross) <= variance * most(d))

    def has_leaves(self, leaves: Floats, noise: float, records: float, look: int, cuts: Cuts) -> bool:
        """Whether a learner's own leaves and bins are those of the table's distribution, as far as they show.

        Parameters
        ----------
        leaves
            As of the class, from the learner's own releases.
        noise, records, look
            As of `is_of`.
        cuts
            How leaves and bins cut the records.

        Notes
        -----
        A tree cuts the records into the positives and the negatives of its leaves, a field into its bins.
        The mean of a cell that has the share p of the records, and counts u, varies by noise and by at most
        `u^2 p (1 / records + 1 / rows)`: so differences are measured in standard deviations. Cells of one
        cut have a covariance of at most the unit matrix; with c cuts, where sampling is at most the share s
        of a cell's variance, no eigenvalue is above `1 + (c - 1) s` (docs/privacy 4.6).
        """
        assert self.leaves is not None
        ours, theirs = cuts.cells(leaves), cuts.cells(self.leaves)
        # Of both estimates of a cell the larger one: that of few records may be 0.
        sampled = cuts.units * np.maximum(np.maximum(ours, theirs), 0.0) * (1.0 / records + 1.0 / self.rows)
        variance = noise + self.noise + sampled
        largest = 1.0 + (cuts.number - 1) * float((sampled / variance).max())
        most = largest * most_squares(len(ours) / largest, look, self._tests)
        return bool(_squares((ours - theirs) / np.sqrt(variance)) <= most)

    # ---- pooling ---------------------------------------------------------------------------------------

    def shares(
        self, noise: float, slots: int, most: int | None, sampled: float | None = None
    ) -> tuple[float, float]:
        """Weights of the table's means and of the learner's in the pooled ones, by their variances.

        Parameters
        ----------
        noise
            Variance of the noise in a packed coordinate of the learner's means; infinity before a release.
        slots
            Number of slots of the learner's means.
        most
            Number of slots that the learner learns, as which the table counts at most; None: no end.
        sampled
            Mean variance of a coordinate of one record; None: of the second moments.

        Notes
        -----
        A variance is that of the noise, and that of sampling: the mean squared length of a record over the
        number of coordinates, over the number of records. Without noise both count by their records.
        """
        if noise == math.inf:
            return 1.0, 0.0
        if sampled is None:
            d = len(self.cross)
            length = min(max(float(vectors.dot(self.second.diagonal().copy(), np.ones(d))), 0.0), 1.0)
            sampled = length / (d * (d + 1) // 2)
        of_table = self.noise + sampled / (self.rows if most is None else min(self.rows, most))
        of_learner = noise + sampled / slots
        total = of_table + of_learner
        return of_learner / total, of_table / total

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays."""
        return {
            "second": self.second.copy(),
            "cross": self.cross.copy(),
            "standardisation": np.array([self.mean, self.factor]),
            "table": [self.rows, self.sigma, self.centre, self.cap, self.sample, self.sample_sigma],
            **({} if self.leaves is None else {"leaves": self.leaves.copy()}),
        }

    @classmethod
    def from_state(cls, saved: Mapping[str, Any]) -> StartMoments:
        """What `to_state` gave; ValueError and the like if it cannot be that."""
        d = len(saved["cross"])
        shapes = {"second": (d, d), "cross": (d,), "standardisation": (2, d)}
        if any(saved[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("moments of another shape")
        rows, sigma, centre, cap, sample, sample_sigma = saved["table"]
        mean, factor = saved["standardisation"]
        made = cls(
            second=saved["second"].copy(),
            cross=saved["cross"].copy(),
            rows=int(rows),
            sigma=float(sigma),
            mean=mean.copy(),
            factor=factor.copy(),
            centre=float(centre),
            cap=float(cap),
            sample=int(sample),
            sample_sigma=float(sample_sigma),
            leaves=saved["leaves"].copy() if "leaves" in saved else None,
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise ValueError if the numbers cannot be those of a release."""
        parts = (self.second, self.cross, self.mean, *(() if self.leaves is None else (self.leaves,)))
        if not all((np.abs(part) < _MOST_SCALE).all() for part in parts):
            raise ValueError("moments that no release has")
        scales = np.append(self.factor, self.cap)
        if not ((scales > 1.0 / _MOST_SCALE) & (scales < _MOST_SCALE)).all():
            raise ValueError("a standardisation that no release has")
        check_release(self.rows, self.sigma, self.sample, self.sample_sigma, self.centre)
        if not np.array_equal(self.second, self.second.T):
            raise ValueError("second moments that are not symmetric")
