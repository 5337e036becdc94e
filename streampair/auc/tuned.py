"""Several learners on one stream, of which the best is found while they learn."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.auc.linear import OAM, SPAUC, PairOGD
from streampair.base.learner import ClassifierMixin, Learner
from streampair.base.validation import check_int
from streampair.errors import ConfigError

__all__ = ["Tuned"]

Array = NDArray[np.float64]

MOST_RACE = 1_000_000
"""Longest race: scores are kept from one elimination to the next."""


def rank_auc(labels: Array, scores: Array) -> float:
    """AUC of scores (n,) for labels 1 and -1; ties count half; 0.5 if a class is missing."""
    # Both sorted: a search for sorted values takes a third of the time.
    high, low = np.sort(scores[labels > 0.0]), np.sort(scores[labels < 0.0])
    if not len(high) or not len(low):
        return 0.5
    below = np.searchsorted(low, high)
    ties = bool((low[np.minimum(below, len(low) - 1)] == high).any())
    # Whole numbers, so that the order of a sum does not matter.
    above = below.sum() + (np.searchsorted(low, high, "right") if ties else below).sum()
    return float(above) / (2.0 * len(high) * len(low))


def rungs(count: int, race: int) -> tuple[int, ...]:
    """Numbers of records after which half of the learners leave, the last of them `race`."""
    rounds = (count - 1).bit_length()
    return tuple(race >> (rounds - number) for number in range(1, rounds + 1))


def _accepts(learner: Learner) -> tuple[Any, ...]:
    """What decides which records a learner accepts."""
    return (
        *(learner.takes_text, learner.takes_gaps, getattr(learner, "max_features", None)),
        *(getattr(learner, "_limit", None), getattr(getattr(learner, "_memory", None), "limit", None)),
    )


@dataclass(eq=False, repr=False)
class Tuned(ClassifierMixin, Learner):
    """The best of several learners, found while they learn, by successive halving; not private.

    All learners learn the first records, and each scores a record before it learns it. At the end of a rung
    the half with the lower AUC in it is dropped; after `race` records one is left, which has learned every
    record. With 8 learners rungs end after a quarter of the race, after half of it, and at its end. Scores
    and probabilities are those of the best learner of the last rung; in the first one, of the first learner.

    Parameters
    ----------
    learners
        Two to 64 learners of `streampair.auc` for two classes, not private, that accept the same records:
        `PairOGD`, `OAM` and `SPAUC`, or `Forest`, with the same `max_features`. They stay as they are.
    race
        Number of records after which one learner is left, from the number of learners to a million. All
        together learn about ``race log2(len(learners))`` records more than one learner alone: with 8 a race
        over a third of the stream doubles the work.
    positive, negative
        As in `PairOGD`, and the same as those of the learners.

    Raises
    ------
    ConfigError
        If the learners do not fit together.

    Notes
    -----
    What is best is judged on the first records: where a stream changes, the best learner of the race need
    not be the best one later. The learners need not differ in settings alone. For a private learner see
    ``privacy.SecondMoments(tune=True)``: a race would spend the budget of each learner.

    References
    ----------
    Jamieson, K. and Talwalkar, A. (2016). Non-stochastic best arm identification and hyperparameter
    optimization. AISTATS. (Successive halving.)

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> model = auc.Tuned([auc.PairOGD(radius=radius) for radius in (0.1, 1.0, 10.0, 100.0)], race=400)
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> model.best.radius, model.remaining, model.records
    (10.0, (2,), 1250)
    """

    learners: Sequence[Any]
    race: int = 4000
    _: KW_ONLY

    _derived: ClassVar[frozenset[str]] = frozenset(
        ("_task", "_left", "_racing", "_rung_scores", "_rung_labels", "_taken", "_rung_start", "_rung_end")
    )

    def __post_init__(self) -> None:
        if not isinstance(self.learners, list | tuple) or not 2 <= len(self.learners) <= 64:
            raise ConfigError(f"learners is {self.learners!r}", fix="give a list of 2 to 64 learners")
        for learner in self.learners:
            if not isinstance(learner, ClassifierMixin) or isinstance(learner, Tuned):
                raise ConfigError(f"{learner!r} is no learner of two classes", fix="give learners of auc")
            if learner.privacy is not None:
                raise ConfigError(
                    f"{type(learner).__name__} is private, and a race would spend the budget of each learner",
                    fix="use privacy.SecondMoments(tune=True), which costs nothing",
                )
            labels = (learner.positive, learner.negative)
            if labels != (self.positive, self.negative):
                raise ConfigError(
                    f"a learner has positive={labels[0]!r} and negative={labels[1]!r}, the race has "
                    f"{self.positive!r} and {self.negative!r}",
                    fix="give both the same",
                )
        if len({_accepts(learner) for learner in self.learners}) > 1:
            raise ConfigError(
                "the learners do not accept the same records",
                fix="give linear learners or forests, with the same max_features and buffers of one type",
            )
        if check_int("race", self.race, len(self.learners)) > MOST_RACE:
            raise ConfigError(f"race is {self.race}", fix=f"give {MOST_RACE} or less")
        self._bind()
        self._begin(list(range(len(self.learners))))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """For River's checks: what it is made with."""
        yield {"learners": [PairOGD(), OAM(seed=1), SPAUC()], "race": 40}

    def _bind(self) -> None:
        self._task = self._make_task()

    def _begin(self, left: list[int]) -> None:
        """Start with new learners of these numbers."""
        self._left, self._racing = left, [self.learners[number].clone() for number in left]
        self._taken = 0
        self._go_on_from(0)

    def _go_on_from(self, last: int) -> None:
        """Make room for the scores of records of a rung, which begins after so many records."""
        ahead = [end for end in rungs(len(self.learners), self.race) if end > last]
        self._rung_start, self._rung_end = last, ahead[0] if ahead else last
        self._rung_scores = np.empty((len(self._racing), self._rung_end - last))
        self._rung_labels = np.empty(self._rung_end - last)

    # ---- the race --------------------------------------------------------------------------------------

    @property
    def best(self) -> Any:
        """The learner that scores now; it goes on learning here."""
        return self._racing[0]

    @property
    def remaining(self) -> tuple[int, ...]:
        """Numbers of the learners that are left, from 0 on; the best one first."""
        return tuple(self._left)

    def _note(self, scores: Array, labels: Array) -> None:
        """Take scores (learners, n) before the records with these labels; half may leave."""
        start = self._taken - self._rung_start
        self._rung_scores[:, start : start + len(labels)] = scores
        self._rung_labels[start : start + len(labels)] = labels
        self._taken += len(labels)
        if self._taken == self._rung_end:
            aucs = [rank_auc(self._rung_labels, row) for row in self._rung_scores]
            order = sorted(range(len(aucs)), key=lambda i: -aucs[i])[: (len(aucs) + 1) // 2]
            self._left = [self._left[i] for i in order]
            self._racing = [self._racing[i] for i in order]
            self._go_on_from(self._rung_end)

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Let the learners that are left learn a record, after they have scored it.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        label = self._task.label(y)
        if len(self._racing) == 1:
            self._racing[0].learn_one(x, y)
        else:
            scores = [learner.score_one(x) for learner in self._racing]
            for learner in self._racing:
                learner.learn_one(x, y)
            self._note(np.array(scores)[:, None], np.array([label]))
        if self._unnamed and label < 0.0:
            self._learn_label(y)

    def _learn_label(self, y: Any) -> None:
        super()._learn_label(y)
        for learner in self._racing:  # an exported model names both labels
            learner._learn_label(y)

    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        rest = self._race_rows(columns, rows, labels, np.empty(len(rows)))
        if rest < len(rows):
            self.best._learn_rows(columns, rows[rest:], labels[rest:])

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        rest = self._race_rows(columns, rows, labels, scores)
        if rest < len(rows):
            scores[rest:] = self.best._score_learn_rows(columns, rows[rest:], labels[rest:])
        return scores

    def _race_rows(self, columns: list[Hashable], rows: Array, labels: Array, scores: Array) -> int:
        """Race over the first rows, until one learner is left; their number. Scores are those of `best`."""
        start = 0
        while start < len(rows) and len(self._racing) > 1:
            if start == 0 and len(rows) > self._rung_end - self._taken:
                self._score_rows(columns, rows)  # whatever cannot be used is found before a part is learned
            part = slice(start, start + self._rung_end - self._taken)
            found = [learner._score_learn_rows(columns, rows[part], labels[part]) for learner in self._racing]
            scores[part] = found[0]
            self._note(np.array(found), labels[part])
            start += len(found[0])
        return start

    def prepare_many(self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], **marks: Any) -> Any:
        """As of the last learner that is left; None before, where records are to be taken one by one."""
        if len(self._racing) > 1 or self._unnamed or not hasattr(self.best, "prepare_many"):
            return None
        return self.best.prepare_many(xs, ys, **marks)

    def prepare_rows(self, columns: Sequence[Hashable], rows: Array, ys: Sequence[Any], **marks: Any) -> Any:
        """`prepare_many` of the rows of an array (n, d) whose columns have these names."""
        if len(self._racing) > 1 or self._unnamed or not hasattr(self.best, "prepare_rows"):
            return None
        return self.best.prepare_rows(columns, rows, ys, **marks)

    # ---- what the best learner says --------------------------------------------------------------------

    @property
    def takes_text(self) -> bool:  # type: ignore[override]  # of a learner, not of the class
        """Whether a text is a feature like any other."""
        return bool(self.best.takes_text)

    @property
    def takes_gaps(self) -> bool:  # type: ignore[override]
        """Whether records with missing features are scored and learned like others."""
        return bool(self.best.takes_gaps)

    @property
    def takes_nulls(self) -> bool:
        """Whether `prepare_many` takes records that are not learned."""
        return bool(self.best.takes_nulls)

    @property
    def _strict_frames(self) -> bool:  # type: ignore[override]
        return bool(self.best._strict_frames)

    @property
    def _read_cell(self) -> Any:
        return self.best._read_cell

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the columns of the design, in order."""
        return self.best.feature_names  # type: ignore[no-any-return]

    @property
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss of the best learner."""
        return self.best.pair_loss  # type: ignore[no-any-return]

    @property
    def comparator_radius(self) -> float:
        """Radius of the ball of the best learner's weights."""
        return float(self.best.comparator_radius)

    @property
    def records(self) -> int:
        """Number of records taken."""
        return int(self.best.records)

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of the record that the published weights are applied to."""
        return self.best.design(x)  # type: ignore[no-any-return]

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Design vectors of several records, shape (n, d)."""
        return self.best.design_many(xs)  # type: ignore[no-any-return]

    def _design_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self.best._design_rows(columns, rows)  # type: ignore[no-any-return]

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the best learner: higher ranks higher.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return self.best.score_one(x)  # type: ignore[no-any-return]

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self.best._score_rows(columns, rows)  # type: ignore[no-any-return]

    def _proba(self, score: float) -> float:
        return self.best._proba(score)  # type: ignore[no-any-return]

    def _probas(self, scores: Array) -> Array:
        return self.best._probas(scores)  # type: ignore[no-any-return]

    def _published(self) -> Array:
        return self.best._published()  # type: ignore[no-any-return]

    @property
    def weights_vector(self) -> Array:
        """Published weights of the best learner: a copy."""
        return self.best.weights_vector  # type: ignore[no-any-return]

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        count = self._taken - self._rung_start
        return {
            "taken": self._taken,
            "left": list(self._left),
            "learners": [learner._export() for learner in self._racing],
            "scores": self._rung_scores[:, :count].copy(),
            "labels": self._rung_labels[:count].copy(),
            "y_name": self._y_name,
            **self._learned_labels(),
        }

    def _import(self, saved: Mapping[str, Any]) -> None:
        left, taken = [int(number) for number in saved["left"]], int(saved["taken"])
        count, last = len(self.learners), 0
        for end in rungs(len(self.learners), self.race):
            if end <= taken:
                count, last = (count + 1) // 2, end
        if len(left) != count or len(set(left)) != count or not set(left) <= set(range(len(self.learners))):
            raise ValueError("other learners than are left after so many records")
        scores = np.asarray(saved["scores"], dtype=np.float64)
        labels = np.asarray(saved["labels"], dtype=np.float64)
        if (
            not 0 <= taken <= self.race
            or scores.shape != (count, taken - last)
            or labels.shape != (taken - last,)
        ):
            raise ValueError("scores of another number of records")
        if not np.isfinite(scores).all() or not np.isin(labels, (-1.0, 1.0)).all():
            raise ValueError("scores or labels that are none")
        racing = [self.learners[number].clone() for number in left]
        for learner, state in zip(racing, saved["learners"], strict=True):
            learner._import(state)
            if learner.records < taken or (count > 1 and learner.records != taken):
                raise ValueError("a learner of another number of records")
        y_name, negative = saved["y_name"], self._checked_label(saved)
        self._left, self._racing, self._taken = left, racing, taken
        self._go_on_from(last)
        self._rung_scores[:, : taken - last], self._rung_labels[: taken - last] = scores, labels
        self._y_name = y_name
        self._learn_label(negative)
