"""Compiled functions: numpy and numba only. Import the submodule: ``from streampair.kernels import ogd``.

Each kernel that the library calls has a slow reference implementation in ``tests/naive/``, in the module of
the same name.
"""

from streampair.kernels._jit import DISABLED, Kernel, on_compile

__all__ = ["DISABLED", "Kernel", "on_compile"]
