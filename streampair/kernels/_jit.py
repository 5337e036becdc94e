"""`@kernel`: how every function of this folder is compiled, and when what is cached on disk is stale.

Rules of a kernel: float64, C order, no fastmath (a replay must give the same bits on another processor),
losses and buffers as integer codes, numpy and numba only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
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


_complained = False


def _complain(error: Exception) -> None:
    """Log once a process that the cache on disk is of no use."""
    global _complained
    if not _complained:
        _complained = True
        logging.getLogger("streampair").warning(
            "the cache of compiled kernels cannot be used (%s: %s): kernels are compiled anew. A damaged "
            "file is replaced; on a full disk make room",
            type(error).__name__,
            error,
        )


class _CheckedFile(getattr(caching, "IndexDataCacheFile", object)):  # type: ignore[misc]
    """The files of a cache, each with a digest at its end: a damaged one is never run."""

    @contextlib.contextmanager
    def _open_for_write(self, path: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        data = content.getvalue()
        with super()._open_for_write(path) as file:
            file.write(data + hashlib.sha256(data).digest())

    def _load_index(self) -> Any:
        if os.path.exists(self._index_path):
            self._check(self._index_path)
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        self._check(self._data_path(name))
        return super()._load_data(name)

    def _check(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read()
        if hashlib.sha256(data[:-32]).digest() != data[-32:]:
            raise ValueError(f"{path} is damaged")


def _checked(cache: Any) -> Any:
    """The same cache, stale with any change in this folder, and with files that are checked."""
    cache._cache_file.__class__ = _CheckedFile
    cache._cache_file._source_stamp = _STAMP
    return cache


COMPILED = os.path.join(os.path.dirname(__file__), "compiled")
"""Where a wheel has kernels that were compiled for any processor of its architecture: see `make wheel`."""


def _read_only_cache(function: Callable[..., Any], folder: str | None = None) -> Any:
    """A cache in the `__pycache__` of a function's file, whether or not it can be written.

    With a folder, what is there for any processor.
    """
    numbas: Any = caching
    try:

        class Locator(numbas.InTreeCacheLocator):  # type: ignore[misc]
            def get_cache_path(self) -> Any:
                return folder or super().get_cache_path()

            def ensure_cache_path(self) -> None:
                """Nothing is written."""

        class Implementation(numbas.CompileResultCacheImpl):  # type: ignore[misc]
            _locator_classes = (Locator,)

        class ReadOnlyCache(numbas.FunctionCache):  # type: ignore[misc]
            _impl_class = Implementation

            def _index_key(self, sig: Any, codegen: Any) -> Any:
                signature, (triple, *this), code = super()._index_key(sig, codegen)
                return signature, (triple, *(("generic", "") if folder else this)), code

        cache = ReadOnlyCache(function)
        assert cache._cache_file._source_stamp
        return _checked(cache)
    except (AttributeError, RuntimeError, TypeError):
        return caching.NullCache()


class FolderCache:
    """Disk cache of a kernel, stale with any change in this folder.

    Numba compares the file of the function alone, and would go on with what was compiled of a function that
    calls a changed one in another file. The names of the cache and of its stamp are private to numba. Made
    when the kernel is first called: to look for a folder that can be written costs as much as the rest of a
    kernel's import.

    What is not in the folder that numba writes is looked for in the one beside the source, where an image or
    an administrator may have compiled it: numba alone does not read a folder that it cannot write. Last comes
    what a wheel brings, which another version of Python or numba, or another architecture, does not find.

    A file that is damaged, or cannot be read or written, is no error: the kernel is compiled, and a damaged
    file is replaced.

    Parameters
    ----------
    function
        The function before it is compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._made: Any = None
        self._read_only: list[Any] | None = None

    @property
    def _writable(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Any:
        try:
            cache = _function_cache(self.function)
            assert cache._cache_file._source_stamp
            return _checked(cache)
        except (AttributeError, TypeError):
            _warn()
            return caching.NullCache()
        except RuntimeError:  # no folder can be written
            return caching.NullCache()

    @property
    def _installed(self) -> list[Any]:
        """The folders to be read only: the one beside the source, and that of a wheel."""
        if self._read_only is None:
            self._read_only = [_read_only_cache(self.function)]
            if os.path.isdir(COMPILED):
                self._read_only.append(_read_only_cache(self.function, COMPILED))
        return self._read_only

    @property
    def cache_path(self) -> str | None:
        """The folder on disk."""
        return self._writable.cache_path  # type: ignore[no-any-return]

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load what was compiled for a signature, or None."""
        found = None
        try:
            found = self._writable.load_overload(signature, context)
        except Exception as error:
            _complain(error)
        for cache in self._installed if found is None else ():
            try:
                found = found or cache.load_overload(signature, context)
            except OSError:  # it cannot be read
                pass
            except Exception as error:
                _complain(error)
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep what was compiled for a signature."""
        try:
            try:
                self._writable.save_overload(signature, compiled)
            except ValueError:  # the index is damaged
                self.flush()
                self._writable.save_overload(signature, compiled)
        except Exception as error:
            _complain(error)

    def flush(self) -> None:
        """Forget all."""
        self._writable.flush()


#: The numba whose compiler `_dispatch` changes. Another one compiles kernels as it does, more slowly.
_CHANGED = "0.68."

_dispatcher: Any = numba.njit(nogil=True)
if numba.__version__.startswith(_CHANGED):
    from streampair.kernels._dispatch import Dispatcher

    _dispatcher = Dispatcher


def kernel(function: F) -> F:
    """Compile a function when it is first called, without the interpreter's lock, and keep it on disk."""
    if DISABLED:
        return function
    dispatcher: Any = _dispatcher(function)
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
