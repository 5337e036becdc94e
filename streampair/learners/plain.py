"""What the learners that are not private share beside `Learner`: how they are saved, copied and pickled."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from streampair.learners.base import Learner

__all__ = ["PlainLearner"]


class PlainLearner(Learner):
    """A learner whose state may be copied and restored at will: nothing is spent by it."""

    #: Attributes that `_bind` and `_import` make anew: scratch, spare capacity, compiled accessors.
    _derived: ClassVar[frozenset[str]] = frozenset()
    _y_name: Any

    @abc.abstractmethod
    def _bind(self) -> None:
        """Make anew what follows from the parameters alone."""

    def to_state(self) -> dict[str, object]:
        """Everything that the learner has learned, as plain values and arrays.

        Raises
        ------
        SnapshotError
            If a feature name is neither text nor a number.
        """
        out = self._checked_export()
        if not isinstance(self._y_name, str):
            out["y_name"] = None
        return out

    def load_state(self, state: Mapping[str, object]) -> None:
        """Continue, bit for bit, from what `to_state` of a learner with the same parameters returned.

        Raises
        ------
        SnapshotError
            If the state is of another learner or another version, or damaged; then nothing has changed.
        """
        self._checked_import(state)

    def __getstate__(self) -> dict[str, Any]:
        # With what others may have set.
        own = {name: value for name, value in self.__dict__.items() if name not in self._derived}
        return {"own": own, "saved": self._export()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self._bind()
        self._import(state["saved"])
