"""Sokoban: push all boxes onto targets, in generated rooms or in Boxoban levels.

`kernels.py` generates rooms and distance tables, `compiled.py` compiles it with numba, `rooms.py`
holds the room record, `levels.py` reads Boxoban files, `search.py` solves rooms that are too large
for a table, `world.py` is the environment. numba is optional: it only makes room generation faster.
"""

from mage.environments.sokoban.world import Sokoban, SokobanState

__all__ = ["Sokoban", "SokobanState"]
