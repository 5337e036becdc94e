"""Building blocks of ONNX graphs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError
from streampair.models.format import Curve

__all__ = ["FEATURES", "PROBABILITIES", "SCORE", "TEXTS", "Graph", "load_onnx"]

FEATURES: Final = "features"
TEXTS: Final = "texts"
SCORE: Final = "score"
PROBABILITIES: Final = "probabilities"


def load_onnx() -> Any:
    """The package onnx.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError:
        raise ConfigError(
            "ONNX needs the package onnx, which is not installed",
            fix="pip install '.[onnx]' in the clone, or pip install onnx; or save the model as .json",
        ) from None
    return onnx


class Graph:
    """Nodes and constants of a graph; a value is known by its name."""

    def __init__(self) -> None:
        self._onnx = load_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: NDArray[Any]) -> str:
        """Add an array, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def op(self, kind: str, *inputs: str | NDArray[Any], name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = f"{kind.lower()}_{len(self.nodes)}" if name is None else name
        domain = "ai.onnx.ml" if kind.startswith("Tree") else ""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(self._onnx.helper.make_node(kind, names, [output], domain=domain, **attributes))
        return output

    def trees(self, rows: str, leaves: int, nodes: dict[str, list[Any]]) -> str:
        """Number of the leaf that each row reaches in each of the trees, (n, trees)."""
        helper, double = self._onnx.helper, self._onnx.TensorProto.DOUBLE

        def tensor(name: str, values: list[float]) -> Any:
            return helper.make_tensor(name, double, [len(values)], values)

        found = self.op(
            "TreeEnsembleRegressor",
            rows,
            n_targets=leaves,
            nodes_values_as_tensor=tensor("nodes_values", nodes.pop("values")),
            target_weights_as_tensor=tensor("target_weights", nodes.pop("numbers")),
            **dict[str, Any](nodes),
        )
        # The operator returns floats of 32 bits, which hold whole numbers below 2^24 exactly.
        return self.op("Cast", found, to=self._onnx.TensorProto.INT64)

    def cast(self, value: str, kind: str) -> str:
        """Cast to a type such as ``"DOUBLE"``."""
        return self.op("Cast", value, to=getattr(self._onnx.TensorProto, kind))

    def sum(self, values: str, *, keep: bool = False) -> str:
        """Sum over the columns, (n,) or (n, 1)."""
        return self.op("ReduceSum", values, np.array([1]), keepdims=int(keep))

    def clip(self, values: str, limit: float) -> str:
        """Clip to [-limit, limit]."""
        return self.op("Clip", values, np.array(-limit), np.array(limit))

    def probabilities(self, curve: Curve, *, both: bool) -> None:
        """Add the output of the probabilities of two classes; not of `both`: of the one that is known."""
        spread, slope = (curve.spread, curve.slope) if curve.spread > 0.0 else (1.0, 0.0)
        odds = self.op("Div", self.op("Sub", SCORE, np.array(curve.centre)), np.array(spread))
        odds = self.op("Add", self.op("Mul", odds, np.array(slope)), np.array(curve.offset))
        high = self.op("Unsqueeze", self.op("Sigmoid", odds), np.array([1]))
        if both:
            low = self.op("Sub", np.array(1.0), high)
            self.op("Concat", low, high, axis=1, name=PROBABILITIES)
        else:
            self.op("Identity", high, name=PROBABILITIES)
