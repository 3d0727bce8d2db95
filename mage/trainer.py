"""The trainer: play -> credit -> pack -> learn -> save -> evaluate, from a recipe to a run folder.

Every random choice of update k is derived from (run seed, k), and the engine starts every update with an empty cache. So the
whole state of a run is its weights, its optimizer and the number k: a run killed at any point and resumed ends with the same
metrics as one that was not. Wall-clock figures are kept apart, in `timing.jsonl`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mage.agent import Agent, Sampling
from mage.chat import Chat
from mage.config import Recipe
from mage.engines.base import Engine
from mage.evaluate import Evaluation, summarise
from mage.learn.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from mage.learn.learner import Learner, load_model
from mage.opponents.base import spread
from mage.panels import Name, make_panel
from mage.play import Setting, play_groups
from mage.returns import compute_returns
from mage.rundir import RunFolder
from mage.seeds import derive
from mage.types import Credit, MetaEpisode, Sample, Split, Task

Figures = dict[str, float]
