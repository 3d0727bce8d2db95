"""Frozen copies of the agent in training: their weights, their scores, and which of them play.

The weights of a copy are one file in the run folder. The checkpoint holds the list of copies with
the SHA-256 of their files and the agent's scores against them, so a resumed run draws the same
copies and ends with the same metrics. Copies play in engines of their own with a second set of
weights, which is overwritten when another copy plays.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from mage.agent.agent import Agent
from mage.config.errors import UserError
from mage.config.recipe import Recipe
from mage.learn.adapters import make_trainable
from mage.learn.trainable import Trainable
from mage.models.base import adapter_folder, model_folder
from mage.models.loading import load_model
from mage.opponents.base import Opponent, find, population_of
from mage.ranks.ranks import Ranks
from mage.run_folder import DamagedError
from mage.run_folder.files import file_digest, sync_folder
from mage.seeds import derive
from mage.training.build import Components
from mage.types import MetaEpisode, Task

FOLDER = "league"  # in a run folder
_NEWEST_WEIGHT = 0.5  # weight of the newest update in the mean score against a copy


@dataclass(frozen=True, slots=True)
class Copy:
    """A frozen copy. `score` is the agent's mean score against it; new updates weigh more."""

    update: int
    sha256: str
    score: float = 0.0
    met: int = 0  # updates in which it has played


def league_of(recipe: Recipe) -> str | None:
    """The name of the league in the training pool, if there is one."""
    names = [name for name in population_of(recipe).pool("train") if find(name).trains_only]
    if len(names) > 1:
        raise UserError(f"opponents.train has several leagues ({', '.join(names)}); use one")
    if names and recipe.learn.shard != "none":
        raise UserError('a league needs learn.shard = "none": every rank holds whole copies')
    return names[0] if names else None


def draw_copies(
    copies: Sequence[Copy], hardness: float, count: int, rng: random.Random
) -> list[Copy]:
    """Up to `count` different copies, hard ones more often."""
    left, drawn = list(copies), list[Copy]()
    while left and len(drawn) < count:
        weights = [math.exp(-hardness * one.score) for one in left]
        drawn.append(rng.choices(left, weights)[0])
        left.remove(drawn[-1])
    return drawn


class LeagueTable:
    """All copies of a run, and the engines in which the drawn ones play."""

    def __init__(self, name: str, folder: Path, components: Components) -> None:
        self.name, self.folder, self.components = name, folder, components
        self.league: Any = find(name)  # a League: menu items are known by name only
        self.copies: list[Copy] = []
        self.players: list[_Player] = []  # made when copies play for the first time

    # -- growth

    def grow(self, update: int, trainable: Trainable, ranks: Ranks) -> None:
        """Take a copy of the agent if one is due after this update."""
        if update % self.league.every or any(one.update == update for one in self.copies):
            return
        if ranks.is_main:
            self._write(update, trainable)
        ranks.barrier()
        self.copies.append(Copy(update, file_digest(self._path(update))))

    def _write(self, update: int, trainable: Trainable) -> None:
        self.folder.mkdir(exist_ok=True)
        partial = self._path(update).with_suffix(".partial")
        masters = trainable.masters.items()
        held = {name: value.detach().cpu().contiguous() for name, value in masters}
        save_file(held, partial)
        sync_folder(partial)
        partial.replace(self._path(update))
        sync_folder(self.folder)

    def _path(self, update: int) -> Path:
        return copy_path(self.folder, update)

    # -- play

    def deal(
        self, tasks_PG: Sequence[Sequence[Task]], seed: int
    ) -> tuple[list[list[Task]], dict[str, Opponent]]:
        """Tasks with copies in place of the league, and the players of these copies."""
        rng = random.Random(derive(seed, "league"))
        drawn = draw_copies(self.copies, self.league.hardness, self.league.at_once, rng)
        names = [self.league.copy_name(one.update) for one in drawn]
        rivals = dict(zip(names, self._seat(drawn), strict=True))

        def deal(task: Task, group: int) -> Task:
            is_ours = task.opponent == self.name
            return replace(task, opponent=names[group % len(names)]) if is_ours else task

        return [[deal(one, group) for one in row] for group, row in enumerate(tasks_PG)], rivals

    def _seat(self, drawn: Sequence[Copy]) -> list[Opponent]:
        """Load the copies into players, one each; missing players are made."""
        while len(self.players) < len(drawn):
            self.players.append(_Player(self.league, self.components))
        seated = self.players[: len(drawn)]
        for player, one in zip(seated, drawn, strict=True):
            player.load(self.folder, one)
        return [player.opponent for player in seated]

    def learn_scores(self, metas: Sequence[MetaEpisode], ranks: Ranks) -> None:
        """Update the mean scores against the copies that have just played."""
        shares = ranks.gather(_sums(metas))
        self.copies = [
            self._with_score(one, [share[name] for share in shares if name in share])
            for one in self.copies
            for name in [self.league.copy_name(one.update)]
        ]

    def _with_score(self, one: Copy, sums: Sequence[tuple[float, int]]) -> Copy:
        games = sum(count for _, count in sums)
        if not games:
            return one
        score = math.fsum(total for total, _ in sums) / games
        weight = 1.0 if one.met == 0 else _NEWEST_WEIGHT
        return replace(one, score=one.score + weight * (score - one.score), met=one.met + 1)

    def figures(self) -> dict[str, float]:
        """Metrics of an update."""
        met = [one.score for one in self.copies if one.met]
        hardest = {"league_hardest": min(met)} if met else {}
        return {"league_copies": float(len(self.copies)), **hardest}

    def release(self) -> None:
        """Free memory that only play needs."""
        for player in self.players:
            player.engine.release()

    # -- checkpoint

    def to_state(self) -> list[list[float | str]]:
        return [[one.update, one.sha256, one.score, one.met] for one in self.copies]

    def from_state(self, state: Sequence[Sequence[Any]]) -> None:
        """The copies of a checkpoint; a missing or changed file is an error."""
        self.copies = read_copies(state)
        for one in self.copies:
            check_copy(self.folder, one)


class _Player:
    """A second set of weights with its own engine."""

    def __init__(self, league: Any, components: Components) -> None:
        recipe = components.recipe
        source = model_folder(recipe)  # adapters need the weights of the start
        self.model = load_model(source, recipe.model.dtype, recipe.run.device)
        learn, start = recipe.learn.model_copy(update={"kl": 0.0}), adapter_folder(recipe)
        self.trainable = make_trainable(self.model, learn, seed=recipe.run.seed, start=start)
        self.engine = recipe.engine()(self.model, components.chat)
        agent: Agent = replace(components.agent(evaluating=False), engine=self.engine)
        episodes = recipe.play.episodes if recipe.play.numbered else 1
        self.opponent: Opponent = league.freeze(agent, recipe.environment(), episodes)

    def load(self, folder: Path, one: Copy) -> None:
        """Take the weights of a copy."""
        check_copy(folder, one)
        for name, value in load_file(copy_path(folder, one.update)).items():
            self.trainable.set_master(name, value)
        self.trainable.write_to_model()
        self.engine.refresh(one.update)


def _sums(metas: Sequence[MetaEpisode]) -> Mapping[str, tuple[float, int]]:
    """Sum of scores and number of episodes, by opponent."""
    found: dict[str, tuple[float, int]] = {}
    for meta in metas:
        total, count = found.get(meta.task.opponent, (0.0, 0))
        scores = [episode.score for episode in meta.episodes]
        found[meta.task.opponent] = total + math.fsum(scores), count + len(scores)
    return found


def copy_path(folder: Path, update: int) -> Path:
    """The file of the copy that was taken after an update."""
    return folder / f"update_{update:06d}.safetensors"


def read_copies(state: Sequence[Sequence[Any]]) -> list[Copy]:
    """The copies as a checkpoint stores them."""
    return [Copy(int(a), str(b), float(c), int(d)) for a, b, c, d in state]


def check_copy(folder: Path, one: Copy) -> None:
    """Raise DamagedError if the file of a copy is missing or changed."""
    path = copy_path(folder, one.update)
    if not path.is_file() or file_digest(path) != one.sha256:
        raise DamagedError(
            f"{path} is missing or damaged. It holds the weights of a frozen copy of the league. "
            "Restore the file, or start the run again"
        )
