"""The functions of `kernels.py`, compiled by numba where it is installed; about 30 times as fast.

Compilation takes seconds. The result is cached on disk where possible. So `rooms.py` asks for
compiled functions only for large rooms.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from mage.environments.sokoban import kernels

_INNER = (
    kernels.draw, kernels.carve, kernels.connect, kernels.rank, kernels.meet, kernels.find_steps,
    kernels.pull, kernels.search, kernels.tabulate, kernels.fill, kernels.list_cells,
    kernels.choose_start, kernels.turn, kernels.weigh, kernels.mark, kernels.scatter, kernels.make,
    kernels.cut,
)  # fmt: skip


def is_installed() -> bool:
    return find_spec("numba") is not None and find_spec("llvmlite") is not None


@cache
def compile_all() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compiled versions of `make_in` and `fill_in`.

    numba invalidates its disk cache when `kernels.py` changes, so everything that is compiled is in
    that file.
    """
    import numba
    from numba.extending import register_jitable

    for function in _INNER:
        register_jitable(function)
    return _compile(numba.njit, kernels.make_in), _compile(numba.njit, kernels.fill_in)


def _compile(njit: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, with a disk cache if a folder for it is writable."""
    try:
        return njit(cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no writable folder
        return njit(function)  # type: ignore[no-any-return]
