"""Scripted play in any environment: random or expert moves, and notes that state facts.

In a state with tool calls that make sense (`State.calls`), the random player makes one of them
before half of its moves. The expert makes all of them, in their order.

Random moves teach the answer format and nothing else. Expert moves (`State.expert`) also teach how
to win; random moves among them (`noise`) are played but not taught, so that the memory of later
episodes also holds failures. With `repeat_wins` the taught move after a won episode is the move of
that episode, so that the memory of a success is worth reading.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mage.agent.agent import random_move
from mage.agent.styles import style_of
from mage.agent.tools import write_call
from mage.config.errors import UserError
from mage.engines.base import ScriptedEngine
from mage.environments.base import State
from mage.learn.imitate.demonstrations import Demonstration, RecordingPlayer, next_of_win, play_all
from mage.play import PlaySetup, recap_text
from mage.seeds import derive
from mage.types import Ending, MetaEpisode, Request, Task


@dataclass(frozen=True, slots=True)
class Script:
    """How the scripted player chooses its moves. `noise` is the share of random moves.

    `note` is the text of every note; empty = facts of the episode.
    """

    expert: bool = False
    noise: float = 0.0
    repeat_wins: bool = False
    note: str = ""
    copies: float = 1.0


def write_demonstrations(
    setup: PlaySetup, tasks: Sequence[Task], seed: int, script: Script | None = None
) -> list[Demonstration]:
    """All taught turns of one scripted meta-episode per task, in order of play.

    Moves are random without a script.
    """
    played = play_scripted(setup, tasks, seed, script or Script())
    return [one for player, meta in played for one in player.read(meta)]


def play_scripted(
    setup: PlaySetup, tasks: Sequence[Task], seed: int, script: Script
) -> list[tuple[RecordingPlayer, MetaEpisode]]:
    """One scripted meta-episode per task, with its player."""
    players = [
        DemonstrationPlayer(setup, task, derive(seed, number), script)
        for number, task in enumerate(tasks)
    ]
    return play_all(players, seed)


class _Chosen(NamedTuple):
    """What is kept of a move: the legal moves, and whether the move is taught."""

    legal: tuple[str, ...]
    taught: bool


class DemonstrationPlayer(RecordingPlayer):
    """The scripted player of one meta-episode."""

    def __init__(self, setup: PlaySetup, task: Task, seed: int, script: Script) -> None:
        super().__init__(setup, task, ScriptedEngine(self._reply, setup.agent.chat.encode))
        self.rng, self.script = random.Random(seed), script
        self.moves: list[list[str]] = []  # of every state
        self.chosen: list[_Chosen] = []  # all moves, in order
        self.called = 0  # tools since the last move

    def _reply(self, request: Request) -> str:
        return self._move(request) if self.asks_for_move(request) else self._note(request)

    def _note(self, request: Request) -> str:
        """A note on the episode that has just ended."""
        state = self.states[-1]
        ending: Ending = "finished" if state.turn() is None else "turn_limit"
        recap = recap_text(self.setup.environment, state, self.task.seat, ending)

        def reply(note: str) -> str:
            return self.chat.thought_end + style_of(self.setup.agent).write_note(note)

        def fits(note: str) -> bool:
            return len(self.chat.encode(reply(note))) < request.max_tokens

        return reply(self.script.note or factual_note(recap, self.rng, fits))

    def _move(self, request: Request) -> str:
        """A call of a tool, or a move."""
        state = self.states[-1]
        text = self._choose_call(state)
        if text is None:
            text = f"<action>{self.wording.word(self._choose_move(state))}</action>"
        text = self.chat.thought_end + text
        if (length := len(self.chat.encode(text))) > request.max_tokens:
            raise UserError(
                f"agent.max_tokens = {request.max_tokens} is too small: the answer {text} takes "
                f"{length} tokens with this model; set agent.max_tokens to {length} or more"
            )
        return text

    def _choose_call(self, state: State) -> str | None:
        """A call of a tool, if the agent has tools and the next reply is one."""
        agent = self.setup.agent
        calls = state.calls()[: agent.limits.calls] if agent.tools(self.setup.environment) else ()
        if self.script.expert:  # all calls, in order
            call = calls[self.called] if self.called < len(calls) else None
        else:  # one call before half of the moves
            may_call = calls and not self.called and self.rng.random() < 0.5
            call = self.rng.choice(calls) if may_call else None
        self.called = 0 if call is None else self.called + 1
        return None if call is None else write_call(*call)

    def _choose_move(self, state: State) -> str:
        """The next move; also records whether it is taught."""
        while len(self.moves) < len(self.states):  # a new episode has begun
            self.moves.append([])
            state.remember(self.states[:-1])
        chosen = self._repeated()  # without noise: a win is repeated to its end
        if chosen is None and self.script.expert and self.rng.random() >= self.script.noise:
            chosen = state.expert()
        # A noise move, or the move in a state without an expert move, is played but not taught.
        taught = chosen is not None or not self.script.expert
        self.chosen.append(_Chosen(self.wording.words(state), taught))
        move = random_move(state, self.rng) if chosen is None else chosen
        self.moves[-1].append(move)
        return move

    def _repeated(self) -> str | None:
        """The next move of an earlier won episode."""
        if not (self.script.expert and self.script.repeat_wins):
            return None
        outcome, seat = self.setup.environment.outcome, self.task.seat
        *past, made = self.moves
        wins = [
            moves
            for state, moves in zip(self.states, past, strict=False)  # states: the present one too
            if state.turn() is None and outcome(state.scores()[seat]) == "won"
        ]
        return next_of_win(wins, made)

    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The taught turns of the finished meta-episode. A note that was cut is not taught."""
        longest = self.setup.agent.sampling.reflection_tokens - 1  # and the end token
        moves = iter(self.chosen)  # every play turn made exactly one
        won = False
        for number, episode in enumerate(meta.episodes):
            passed_over = won and self.rng.random() >= self.script.copies
            won = won or (self.script.repeat_wins and episode.outcome == "won")
            for index, turn in enumerate((episode.reflection, *episode.turns), start=-1):
                if turn is None:
                    continue
                # A move ends with </action>, a note with the end token.
                end = self.chat.end_ids[:1] if turn.kind == "reflect" else ()
                where = meta.where(number, index)
                whole = len(turn.completion.token_ids) <= longest
                legal, taught = next(moves) if turn.kind == "play" else ((), whole)
                taught = taught and not passed_over
                for call in turn.calls if taught else ():
                    said = replace(turn, prompt_ids=call.prompt_ids, choices=(), calls=())
                    yield Demonstration(said, call.completion.token_ids, (), where)
                if taught:
                    yield Demonstration(turn, turn.completion.token_ids + end, legal, where)
        assert next(moves, None) is None, "every chosen move has its turn"


def facts_of(recap: str) -> list[str]:
    """The sentences of a recap of a finished episode.

    >>> facts_of("Your card: J. Moves: you pass. You lost 1 chip.")
    ['Your card: J.', 'Moves: you pass.', 'You lost 1 chip.']
    """
    return [
        fact
        for line in recap.splitlines()
        for fact in re.split(r"(?<=[.!?])\s+", line.strip())
        if fact
    ]


def factual_note(
    recap: str, rng: random.Random, fits: Callable[[str], bool] = lambda text: True
) -> str:
    """A random selection of the facts of an episode, at least one, in random order.

    A fact that makes the note too long (`fits`) is left out. If none fits, use the shortest. The
    note on a recap without facts is empty.
    """
    facts = facts_of(recap)
    if not facts:
        return ""
    note = ""
    for fact in rng.sample(facts, rng.randint(1, len(facts))):
        longer = f"{note} {fact}".strip()
        note = longer if fits(longer) else note
    return note or min(facts, key=len)
