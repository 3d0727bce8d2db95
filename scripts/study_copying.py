"""Does an agent copy its successes? `python scripts/study_copying.py RECIPE [--size N] [OPTIONS]`.

A scripted player wins the first episode of held-out tasks in a roundabout way: the expert's moves
with random moves among them (`NOISE`). In the second episode it repeats these moves. In every turn
of the second episode the script prints the probability that the agent makes the repeated move, and
the probability of the expert's move, where the two differ. An agent that reads its memory has a
high first figure with the memory and a low one without it.

    python scripts/study_copying.py smollm2_sokoban --model.path=sokoban-warm --size 100
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mage.agent.agent import random_move
from mage.api.agents import Candidate, find_candidate
from mage.engines.base import run
from mage.environments.base import State
from mage.evaluation.panels import make_panel
from mage.learn.attention import best_layout
from mage.learn.demonstrations import DemonstrationPlayer, Script
from mage.learn.supervised import reply_logprobs
from mage.memory.base import Memory
from mage.memory.notes import Notes
from mage.play import Setting, play_meta_episode
from mage.types import Episode, Sample, Task, Where

NOISE = 0.3


@dataclass(frozen=True, slots=True)
class Choice:
    """A turn of the second episode: the prompt, the repeated move and the expert's move."""

    prompt: tuple[int, ...]
    repeated: str
    expert: str


class Repeater(DemonstrationPlayer):
    """Wins with random moves among the expert's, then repeats the moves of the win."""

    def __init__(self, setting: Setting, task: Task, seed: int) -> None:
        super().__init__(setting, task, seed, Script(True, NOISE, True))
        self.asked: list[tuple[int, str | None, str | None]] = []

    def _choose_move(self, state: State) -> str:
        self.moves += [[] for _ in range(len(self.states) - len(self.moves))]
        repeated, expert = self._repeated(), state.expert()
        self.asked.append((len(self.states), repeated, expert))
        noisy = len(self.states) == 1 and self.rng.random() < NOISE
        move = repeated or (random_move(state, self.rng) if noisy or expert is None else expert)
        self.moves[-1].append(move)
        self.taught.append(True)
        return move

    def choices(self, second: Episode) -> Iterator[Choice]:
        """The turns of the second episode in which the expert would not repeat the move."""
        asked = [moves for episode, *moves in self.asked if episode == 2]
        for turn, (repeated, expert) in zip(second.turns, asked, strict=True):
            if repeated and expert and repeated != expert:
                yield Choice(turn.prompt_ids, repeated, expert)


def find_choices(agent: Candidate, memory: Memory | None, size: int) -> list[list[Choice]]:
    """The turns to score of every task whose first episode was won."""
    parts = agent.components
    setting = replace(parts.setting(evaluating=True, memory=memory), episodes=2)
    panel = make_panel(
        setting.environment, parts.recipe.population(), "test", size=size, name="final"
    )
    players = [Repeater(setting, task, number) for number, task in enumerate(panel)]
    metas = run(
        play_meta_episode(one.setting, one.task, number, 0, number)
        for number, one in enumerate(players)
    )
    return [
        list(one.choices(meta.episodes[1]))
        for one, meta in zip(players, metas, strict=True)
        if meta.episodes[0].outcome == "won"
    ]


def score(agent: Candidate, tasks: list[list[Choice]]) -> tuple[float, float]:
    """The mean probabilities of the repeated moves and of the expert's moves."""
    parts, chat = agent.components, agent.components.chat
    samples = [
        Sample(one.prompt, reply, (0.0,) * len(reply), 0.0, (), "play", Where(number, 0, 1, at, ""))
        for number, choices in enumerate(tasks)
        for at, one in enumerate(choices)
        for move in (one.repeated, one.expert)
        for reply in [chat.encode(f"{chat.thought_end}<action>{move}</action>")]
    ]
    learn, model = parts.recipe.learn, parts.weights()
    found = reply_logprobs(
        model,
        samples,
        tree_tokens=4096,
        micro_tokens=learn.tokens_at_once,
        layout=best_layout(model, learn),
    )
    chances = [math.exp(value) for value in found]
    return tuple(sum(part) / max(1, len(part)) for part in (chances[::2], chances[1::2]))


def main(words: list[str]) -> None:
    name, *rest = words
    size = int(rest.pop(rest.index("--size") + 1)) if "--size" in rest else 60
    agent = find_candidate(name, [word for word in rest if word != "--size"], None)
    for title, memory in (("with memory", None), ("memory emptied", Notes(keep="none"))):
        tasks = find_choices(agent, memory, size)
        repeated, expert = score(agent, tasks)
        print(
            f"{title}: {len(tasks)} won tasks, {sum(map(len, tasks))} turns; probability of the "
            f"repeated move {repeated:.3f}, of the expert's move {expert:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
