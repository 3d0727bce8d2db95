"""The functions of `kernels.py`, compiled by numba where it is installed; about thirty times as fast.

Compiling takes seconds and the result is kept on disk where that is allowed, so `rooms.py` asks for it only where it pays.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from mage.environments.sokoban import kernels

_INNER = (
    kernels.draw, kernels.carve, kernels.connect, kernels.rank, kernels.meet, kernels.find_steps, kernels.pull, kernels.search,
    kernels.tabulate, kernels.fill, kernels.list_cells, kernels.choose_start, kernels.mark, kernels.scatter, kernels.make, kernels.cut,
)  # fmt: skip


def is_installed() -> bool:
    return find_spec("numba") is not None and find_spec("llvmlite") is not None


@cache
def compile_all() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`make_in` and `fill_in`, compiled. What is kept on disk is made anew when `kernels.py` changes, so all that is compiled is there."""
    import numba
    from numba.extending import register_jitable

    for function in _INNER:
        register_jitable(function)
    return _compile(numba.njit, kernels.make_in), _compile(numba.njit, kernels.fill_in)


def _compile(njit: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Kept on disk if there is a place for it."""
    try:
        return njit(cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no folder that it may write to
        return njit(function)  # type: ignore[no-any-return]
