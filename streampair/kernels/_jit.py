"""`@kernel`: how every function of this folder is compiled, and when what is cached on disk is stale.

Rules of a kernel: float64, C order, no fastmath (a replay must give the same bits on another processor),
losses and buffers as integer codes, numpy and numba only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
from numba.core import caching, event
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])

DISABLED: bool = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""Kernels run as Python (``NUMBA_DISABLE_JIT=1``, for coverage)."""


def _stamp() -> str:
    """Hash of the names and contents of all source files in this folder."""
    folder = os.path.dirname(__file__)
    digest = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


_STAMP = "" if DISABLED else _stamp()


_function_cache: Any = caching.FunctionCache  # it has no types


def _warn() -> None:
    warnings.warn(
        f"numba {numba.__version__} keeps its cache in a way that streampair does not know: every process "
        "will compile its kernels anew; to avoid that, install numba 0.68",
        RuntimeWarning,
        stacklevel=3,
    )


def _read_only_cache(function: Callable[..., Any]) -> Any:
    """A cache in the `__pycache__` of a function's file, whether or not it can be written."""
    numbas: Any = caching
    try:

        class Locator(numbas.InTreeCacheLocator):  # type: ignore[misc]
            def ensure_cache_path(self) -> None:
                """Nothing is written."""

        class Implementation(numbas.CompileResultCacheImpl):  # type: ignore[misc]
            _locator_classes = (Locator,)

        class ReadOnlyCache(numbas.FunctionCache):  # type: ignore[misc]
            _impl_class = Implementation

        cache = ReadOnlyCache(function)
        assert cache._cache_file._source_stamp
    except (AttributeError, RuntimeError, TypeError):
        return caching.NullCache()
    cache._cache_file._source_stamp = _STAMP
    return cache


class FolderCache:
    """Disk cache of a kernel, stale with any change in this folder.

    Numba compares the file of the function alone, and would go on with what was compiled of a function that
    calls a changed one in another file. The names of the cache and of its stamp are private to numba. Made
    when the kernel is first called: to look for a folder that can be written costs as much as the rest of a
    kernel's import.

    What is not in the folder that numba writes is looked for in the one beside the source, where an image or
    an administrator may have compiled it: numba alone does not read a folder that it cannot write.

    Parameters
    ----------
    function
        The function before it is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._made: Any = None
        self._read_only: Any = None

    @property
    def _writable(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Any:
        try:
            cache = _function_cache(self.function)
            assert cache._cache_file._source_stamp
        except AttributeError:
            _warn()
            return caching.NullCache()
        except RuntimeError:  # no folder can be written
            return caching.NullCache()
        cache._cache_file._source_stamp = _STAMP
        return cache

    @property
    def _installed(self) -> Any:
        """The folder beside the source, to be read."""
        if self._read_only is None:
            self._read_only = _read_only_cache(self.function)
        return self._read_only

    @property
    def cache_path(self) -> str | None:
        """The folder on disk."""
        return self._writable.cache_path  # type: ignore[no-any-return]

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load what was compiled for a signature, or None."""
        found = self._writable.load_overload(signature, context)
        if found is None:
            with contextlib.suppress(OSError):  # it cannot be read
                found = self._installed.load_overload(signature, context)
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled for a signature."""
        self._writable.save_overload(signature, compiled)

    def flush(self) -> None:
        """Forget all."""
        self._writable.flush()


def kernel(function: F) -> F:
    """Compile a function when it is first called, without the interpreter's lock, and keep it on disk."""
    if DISABLED:
        return function
    dispatcher: Any = numba.njit(nogil=True)(function)
    if hasattr(dispatcher, "_cache"):
        dispatcher._cache = FolderCache(function)
    else:
        _warn()
    return dispatcher  # type: ignore[no-any-return]


Kernel: type[Any] = type(kernel(lambda: None))
"""What a kernel is: compiled code that everybody shares."""


class _OnCompile(event.Listener):
    """Calls a function when the first kernel is compiled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def on_start(self, event: Any) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()

    def on_end(self, event: Any) -> None:
        """One of them is compiled; others follow."""


class _Announce(event.Listener):
    """Logs once a process that kernels are being compiled: a first record may wait for that for seconds."""

    def __init__(self) -> None:
        self._done = False

    def on_start(self, event: Any) -> None:
        function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
        if self._done or not getattr(function, "__module__", "").startswith(__package__):
            return
        self._done = True
        logging.getLogger("streampair").warning(
            "compiling kernels, once: this may take some seconds; later processes load them from disk"
        )

    def on_end(self, event: Any) -> None:
        """One of them is compiled; others may follow."""


event.register("numba:compile", _Announce())  # type: ignore[no-untyped-call]


def on_compile(call: Callable[[], None]) -> Any:
    """Call a function once if a kernel is compiled in a `with` block: one that is found on disk is not."""
    return event.install_listener("numba:compile", _OnCompile(call))
