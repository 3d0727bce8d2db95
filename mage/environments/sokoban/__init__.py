"""Sokoban: push all boxes onto targets, in rooms made to order or read from Boxoban level files.

`kernels.py` makes rooms and the distance of every state to the solution, `compiled.py` has numba compile it, `rooms.py` holds a room, `levels.py` reads
Boxoban files, `search.py` solves what is too large for a table, `world.py` is the environment. Nothing here needs numba; it makes rooms faster.
"""

from mage.environments.sokoban.world import Sokoban, SokobanState

__all__ = ["Sokoban", "SokobanState"]
