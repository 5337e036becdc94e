"""How kernels call each other: what a call compiles becomes machine code once, in that of the caller.

Numba compiles a function that another one calls as if Python were to call it, too: with what converts
arguments, optimised, and as machine code, all below it included. Its caller then does so again with the lot.
So a kernel has a second dispatcher, which stands for it wherever a compiled function calls it, and stops
before all that. The bits of a result depend on neither: no optimisation of LLVM changes them unless numba
asks for fastmath.

Numba tries the ten or so signatures of an operator again for each of the thousands of times that kernels use
it. While one is compiled, what was found for an operator and types of arguments is kept.
"""

# mypy: disable-error-code="no-untyped-call"
# numba has no types

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import codegen, compiler, environment, registry, typed_passes, types
from numba.core.compiler_machinery import register_pass


class _CodeOfOne(codegen.JITCodeLibrary):
    """The code of one kernel, not optimised, and without what it calls."""

    def finalize(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerPart(typed_passes.NativeLowering):
    _name = "streampair_lower_part"

    def run_pass(self, state: Any) -> bool:
        state.library = _CodeOfOne(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        key = object()  # by which its callers find it, in place of an address
        below = state.library._linking_libraries  # a caller has to link all of them
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library, *below])
        state.cr = state.cr._replace(cfunc=key)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerWhole(typed_passes.NativeLowering):
    _name = "streampair_lower_whole"

    def run_pass(self, state: Any) -> bool:
        super().run_pass(state)
        library = state.library
        for variable in library._final_module.global_variables:
            found = None if variable.is_declaration else environment.lookup_environment(variable.name)
            if found is not None:  # numba sets that of the kernel itself
                library.codegen.set_env(variable.name, found)
        return True


@contextlib.contextmanager
def _remembered_signatures() -> Iterator[None]:
    """Look up the signature of a function of numba's once for the same types of arguments.

    For a thread that holds numba's lock, without which nothing is compiled. A kernel that is compiled for
    another one takes what was found for that.
    """
    function: Any = types.Function
    if "get_call_type" in vars(function):
        yield
        return
    look_up = function.get_call_type
    found: dict[Any, Any] = {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = self, context, tuple(args), tuple(kws.items())
        signature = found.get(key)
        if signature is None:
            signature = found[key] = look_up(self, context, args, kws)
        return signature

    function.get_call_type = get_call_type
    try:
        yield
    finally:
        del function.get_call_type  # it is inherited


def _pipeline(lower: Any) -> Any:
    """Numba's pipeline with another last step."""

    class Pipeline(compiler.CompilerBase):
        def _compile_bytecode(self) -> Any:
            with _remembered_signatures():
                return super()._compile_bytecode()

        def define_pipelines(self) -> list[Any]:
            made = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
            made.passes = [
                (lower if p is typed_passes.NativeLowering else p, name) for p, name in made.passes
            ]
            made.finalize()
            return [made]

    return Pipeline


_COMPILE_PART, _COMPILE_WHOLE = _pipeline(_LowerPart), _pipeline(_LowerWhole)
_OPTIONS = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True}


class _Called(registry.CPUDispatcher):
    """A kernel as other compiled functions call it."""

    _type: Any

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # Numba would compile a function again for each constant that is given to it.
        plain = [types.unliteral(kind) for kind in args]
        return super().get_call_template(plain, {name: types.unliteral(kind) for name, kind in kws.items()})

    def add_overload(self, result: Any) -> None:
        self.overloads[tuple(result.signature.args)] = result


class Dispatcher(registry.CPUDispatcher):
    """A kernel as Python calls it."""

    def __init__(self, function: Callable[..., Any], *_: Any) -> None:
        super().__init__(function, None, _OPTIONS, _COMPILE_WHOLE)
        self._called = _Called(function, None, {**_OPTIONS, "no_cpython_wrapper": True}, _COMPILE_PART)

    @property
    def _numba_type_(self) -> Any:
        """What a function that calls this one takes it for."""
        return self._called._type
