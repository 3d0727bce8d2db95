"""The control with swapped memories: a task is played with the memory of another task.

The panel is played twice. The first time every task writes its own memory. The second time each
task sees, before every episode, what another task of the panel had in its memory there: notes or
recaps of the same form about another opponent or another instance. An agent that uses what its
memory says then loses its gain; an agent that gains because the prompt is longer, or because a
later episode is announced, keeps it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.evaluation.figures import Evaluation
from mage.evaluation.panels import PanelName
from mage.evaluation.run import evaluate_panel
from mage.opponents.base import Population, meet
from mage.play import PlaySetup
from mage.types import Task


def evaluate_swapped(
    setup: PlaySetup,
    population: Population,
    tasks: tuple[Task, ...],
    panel: PanelName,
    *,
    plays: int = 1,
    with_ceilings: bool = True,
) -> Evaluation:
    """Figures of the panel when every task sees the memory of its partner."""
    if setup.memory.tasks_at_once is not None:
        raise UserError(
            f"the memory {setup.memory.name} is kept from task to task, so it has no notes of one "
            "task to swap. Use the memory notes or amem"
        )
    others = partners(setup.environment, tasks)
    _, metas = evaluate_panel(setup, population, tasks, panel, plays=plays, with_ceilings=False)
    kept, count = {meta.group: meta.memories for meta in metas}, len(tasks)
    if not any(text for texts in kept.values() for text in texts):
        raise UserError("the memory stayed empty in all tasks, so nothing can be swapped")
    shown = {group: kept[group - group % count + others[group % count]] for group in kept}
    setup = replace(setup, shown=shown)
    how: dict[str, Any] = {"plays": plays, "with_ceilings": with_ceilings, "transcripts": 0}
    return evaluate_panel(setup, population, tasks, panel, **how)[0]


def partners(environment: Environment, tasks: Sequence[Task]) -> list[int]:
    """For every task, the next one of its world with the same seat and another adversary.

    After the last task comes the first one. Panels are in random order, so this is a fair draw, and
    it is the same for all agents. The adversary is the player on the other side, or the instance in
    an environment without opponents.
    """
    found, count = list[int](), len(tasks)
    faced = [_adversary(environment, task) for task in tasks]
    for place, task in enumerate(tasks):
        others = ((place + step) % count for step in range(1, count))
        partner = next(
            (
                other
                for other in others
                if (tasks[other].environment, tasks[other].seat) == (task.environment, task.seat)
                and faced[other] != faced[place]
            ),
            None,
        )
        if partner is None:
            raise UserError(
                "memories cannot be swapped: all tasks of this panel in one seat have the same "
                "opponent or instance. Use a larger --size or another --split"
            )
        found.append(partner)
    return found


def _adversary(environment: Environment, task: Task) -> object:
    world = environment.world_of(task).for_split(task.split)
    if world.multi_agent:
        return meet(task)
    return world.instance_key(world.episode_seed(task.seed, 0))
