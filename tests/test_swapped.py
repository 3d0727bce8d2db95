"""Controls of an evaluation: memories of other tasks, and notes that another agent writes."""

from dataclasses import replace

import pytest
from corridor import Corridor
from toys import scripted_agent

from mage.config.errors import UserError
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.rock_paper_scissors import RockPaperScissors
from mage.evaluation.panels import make_panel
from mage.evaluation.run import evaluate_panel
from mage.evaluation.swapped import evaluate_swapped, partners
from mage.memory.memento import Memento
from mage.memory.notes import Notes
from mage.opponents.base import Population, meet
from mage.play import PlaySetup, play_groups
from mage.types import Task

STYLES = {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}
PLAYERS = {"dirichlet-0.5": 1.0}
NOTE = "Write a short note"


def panel(world: Environment, pool: dict[str, float], size: int = 20) -> tuple[Task, ...]:
    return make_panel(world, Population(train=pool), "test", size=size)


@pytest.mark.parametrize(
    ("world", "pool"), [(KuhnPoker(), STYLES), (RockPaperScissors(), PLAYERS)], ids=["kuhn", "rps"]
)
def test_a_partner_has_the_same_seat_and_is_another_player(world, pool):
    tasks = panel(world, pool)
    others = partners(world, tasks)
    for task, other in zip(tasks, others, strict=True):
        assert tasks[other].seat == task.seat
        assert meet(tasks[other]) != meet(task)
    assert others == partners(world, tasks)
    if pool is PLAYERS:  # all players differ, so every memory is used once
        assert sorted(others) == list(range(20))


def test_a_partner_is_another_instance_where_nobody_plays_against_the_agent():
    tasks = make_panel(Corridor(), Population(), "test", size=5)
    assert partners(Corridor(), tasks) == [1, 2, 3, 4, 0]
    with pytest.raises(UserError, match="have the same opponent or instance"):
        partners(Corridor(), tasks[:1])
    with pytest.raises(UserError, match="have the same opponent or instance"):
        partners(KuhnPoker(), panel(KuhnPoker(), {"cfr": 1.0}))


def test_a_swapped_task_sees_the_memory_of_its_partner_and_nothing_else_changes():
    """The agent bets in the first game and passes if its memory says that a bet was lost."""

    def reply(prompt: str) -> str:
        if NOTE in prompt:
            return "lost" if "lost" in prompt.rpartition("is over.")[2] else "won"
        return f"<action>{'pass' if 'Note 1: lost' in prompt else 'bet'}</action>"

    population = Population(train=STYLES)
    tasks, seen = panel(KuhnPoker(), STYLES), list[str]()
    setup = PlaySetup(
        KuhnPoker(), scripted_agent(reply, seen=seen), Notes(keep="reflections"), episodes=2
    )
    kept, metas = evaluate_panel(setup, population, tasks, "final", plays=2)
    seen.clear()
    swapped = evaluate_swapped(setup, population, tasks, "final", plays=2)
    assert [row.task for row in swapped.rows] == [row.task for row in kept.rows]
    assert [row.scores[0] for row in swapped.rows] == [row.scores[0] for row in kept.rows]
    assert sum(NOTE in prompt for prompt in seen) == len(metas), "no notes in the second pass"
    others = partners(KuhnPoker(), tasks)
    shown = {meta.group: meta.memories for meta in metas}
    expected = {group: shown[group - group % 20 + others[group % 20]] for group in shown}
    again, _ = evaluate_panel(
        replace(setup, shown=expected), population, tasks, "final", plays=2, with_ceilings=True
    )
    assert again.rows == swapped.rows
    assert swapped.rows != kept.rows


def test_a_memory_that_is_kept_from_task_to_task_cannot_be_swapped():
    agent = scripted_agent(lambda prompt: "<action>bet</action>")
    setup = PlaySetup(KuhnPoker(), agent, Memento(embedding="lexical", wave=10))
    with pytest.raises(UserError, match="kept from task to task"):
        evaluate_swapped(
            setup, Population(train=STYLES), panel(KuhnPoker(), STYLES), "final", plays=1
        )


def test_another_agent_writes_the_notes_and_the_reader_never_does():
    read, written = list[str](), list[str]()
    reader = scripted_agent(lambda prompt: "<action>bet</action>", seen=read)
    writer = scripted_agent(lambda prompt: "by the writer", seen=written)
    setup = PlaySetup(KuhnPoker(), reader, Notes(keep="reflections"), writer=writer)
    task = Task("kuhn_poker", 5, 0, "aggressive", "train")
    meta = play_groups(setup, [[task]], seed=1)[0]
    assert meta.memories[2] == "Note 1: by the writer\nNote 2: by the writer"
    assert all(NOTE in prompt for prompt in written)
    assert len(written) == 2
    assert not any(NOTE in prompt for prompt in read)
