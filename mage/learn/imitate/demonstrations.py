"""Scripted play in any environment: random or expert moves, and notes that state facts.

In a state with tool calls that make sense (`State.calls`), the random player makes one of them
before half of its moves. The expert makes all of them, in their order.

Random moves teach the answer format and nothing else. Expert moves (`State.expert`) also teach how
to win; random moves among them (`noise`) are played but not taught, so that the memory of later
episodes also holds failures. With `repeat_wins` the taught move after a won episode is the move of
that episode, so that the memory of a success is worth reading. The scripted player reads the state
and not the prompt. Its replies take the same path as a model's, so the prompts are exactly those of
real play.
"""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mage.agent.agent import Sampler, random_move
from mage.agent.chat import Ids
from mage.agent.styles import style_of, wording_of
from mage.agent.tools import write_call
from mage.config.errors import UserError
from mage.engines.base import ScriptedEngine, run
from mage.environments.base import State
from mage.play import PlaySetup, play_meta_episode, recap_text
from mage.seeds import derive
from mage.types import (
    Completion,
    Ending,
    MetaEpisode,
    ReplyKind,
    Request,
    Sample,
    Task,
    Turn,
    TurnRef,
)


@dataclass(frozen=True, slots=True)
class Script:
    """How the scripted player chooses its moves. `noise` is the share of random moves.

    `note` is the text of every note; empty = facts of the episode.
    """

    expert: bool = False
    noise: float = 0.0
    repeat_wins: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A turn of scripted play. `reply_ids` is the reply that the model should learn, end included.

    `legal` holds the legal moves of the turn; it is empty for a note and for a call of a tool.
    """

    turn: Turn
    reply_ids: Ids
    legal: tuple[str, ...]
    where: TurnRef

    @property
    def kind(self) -> ReplyKind:
        return "call" if self.turn.kind == "play" and not self.legal else self.turn.kind

    def sample(self) -> Sample:
        """The demonstration as a row of training data."""
        return Sample(
            self.turn.prompt_ids,
            self.reply_ids,
            (0.0,) * len(self.reply_ids),
            1.0,
            self.turn.choices,
            self.kind,
            self.where,
        )


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
) -> list[tuple["_Player", MetaEpisode]]:
    """One scripted meta-episode per task, with its player."""
    players = [
        DemonstrationPlayer(setup, task, derive(seed, number), script)
        for number, task in enumerate(tasks)
    ]
    return _play_all(players, seed)


def _play_all(
    players: Sequence["_Player"], seed: int, limit: int | None = None
) -> list[tuple["_Player", MetaEpisode]]:
    """One meta-episode of every player, at most `limit` at a time."""
    games = [
        play_meta_episode(
            player.setup, player.task, n, 0, derive(seed, n), on_start=player.states.append
        )
        for n, player in enumerate(players)
    ]
    return list(zip(players, run(games, limit=limit), strict=True))


class _Player(ABC):
    """The player of one meta-episode. It sees the states of its episodes, and not the prompts."""

    def __init__(self, setup: PlaySetup, task: Task, engine: Sampler) -> None:
        world, agent = setup.environment.world_of(task), replace(setup.agent, engine=engine)
        self.setup = replace(setup, environment=world, agent=agent)
        self.task, self.chat = task, setup.agent.chat
        self.wording = wording_of(setup.agent, world)
        self.states: list[State] = []

    @abstractmethod
    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The demonstrations of the finished meta-episode."""


class DemonstrationPlayer(_Player):
    """The scripted player of one meta-episode."""

    def __init__(self, setup: PlaySetup, task: Task, seed: int, script: Script) -> None:
        super().__init__(setup, task, ScriptedEngine(self._reply, setup.agent.chat.encode))
        self.rng, self.script = random.Random(seed), script
        self.moves: list[list[str]] = []  # of every state
        self.legal: list[tuple[str, ...]] = []
        self.taught: list[bool] = []  # of every move
        self.called = 0  # tools since the last move

    def _reply(self, request: Request) -> str:
        """A request with stop strings asks for a move; any other request asks for a note."""
        state = self.states[-1]
        if not request.stop:
            ending: Ending = "finished" if state.turn() is None else "turn_limit"
            recap = recap_text(self.setup.environment, state, self.task.seat, ending)

            def reply(note: str) -> str:
                return self.chat.thought_end + style_of(self.setup.agent).write_note(note)

            def fits(note: str) -> bool:
                return len(self.chat.encode(reply(note))) < request.max_tokens

            return reply(self.script.note or factual_note(recap, self.rng, fits))
        text = self._choose_call(state)
        if text is None:
            self.legal.append(self.wording.words(state))
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
        agent, expert = self.setup.agent, self.script.expert
        calls = state.calls()[: agent.limits.calls] if agent.tools(self.setup.environment) else ()
        left = calls[self.called :] if expert or not self.called else ()
        if left and (expert or self.rng.random() < 0.5):
            self.called += 1
            return write_call(*(left[0] if expert else self.rng.choice(left)))
        self.called = 0
        return None

    def _choose_move(self, state: State) -> str:
        """The next move; also records whether it is taught."""
        self.moves += [[] for _ in range(len(self.states) - len(self.moves))]
        expert = self._repeated()  # without noise: a win is repeated to its end
        if expert is None and self.script.expert and self.rng.random() >= self.script.noise:
            expert = state.expert()
        self.taught.append(expert is not None or not self.script.expert)
        move = random_move(state, self.rng) if expert is None else expert
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
            for state, moves in zip(self.states, past, strict=False)
            if state.turn() is None and outcome(state.scores()[seat]) == "won"
        ]
        return next_of_win(wins, made)

    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The demonstrations of the finished meta-episode."""
        moves = zip(self.legal, self.taught, strict=True)
        for number, episode in enumerate(meta.episodes):
            for index, turn in enumerate((episode.reflection, *episode.turns), start=-1):
                if turn is None:
                    continue
                end = self.chat.end_ids[:1] if turn.kind == "reflect" else ()
                where = TurnRef(meta.group, meta.member, number, index, meta.task.opponent)
                legal, taught = next(moves) if turn.kind == "play" else ((), True)
                for call in turn.calls if taught else ():
                    said = replace(turn, prompt_ids=call.prompt_ids, choices=(), calls=())
                    yield Demonstration(said, call.completion.token_ids, (), where)
                if taught:
                    yield Demonstration(turn, turn.completion.token_ids + end, legal, where)


def next_of_win(wins: Sequence[Sequence[str]], made: Sequence[str]) -> str | None:
    """The next move of the latest won episode that begins with the moves `made`.

    >>> next_of_win([("up", "left"), ("down", "up")], ["up"])
    'left'
    """
    for win in reversed(wins):
        if len(win) > len(made) and list(win[: len(made)]) == list(made):
            return win[len(made)]
    return None


def label_play(
    setup: PlaySetup,
    tasks: Sequence[Task],
    seed: int,
    *,
    repeat_wins: bool = False,
    after_loss: bool = False,
) -> list[Demonstration]:
    """The model plays one meta-episode per task; every turn is labelled with the expert's move.

    So the taught situations, and the failures in the memory, are those of the model itself (DAgger,
    Ross et al. 2011). Turns without an expert's move are left out, and so are notes. With
    `repeat_wins` the label after a won episode is the next move of that episode. With `after_loss`
    only tasks whose first episode was not won are labelled, from the second episode on.
    """
    players = [LabelledPlayer(setup, task, repeat_wins=repeat_wins) for task in tasks]
    played = _play_all(players, seed, setup.agent.engine.capacity)
    return [
        demonstration
        for player, meta in played
        if not (after_loss and meta.episodes[0].outcome == "won")
        for demonstration in player.read(meta)
        if not (after_loss and demonstration.where.episode == 0)
    ]


class LabelledPlayer(_Player):
    """The model as player of one meta-episode, with the expert's move for every request."""

    def __init__(self, setup: PlaySetup, task: Task, *, repeat_wins: bool = False) -> None:
        super().__init__(setup, task, _Observed(setup.agent.engine, self._label))
        self.repeat_wins = repeat_wins
        self.labels: dict[Ids, tuple[str | None, tuple[str, ...]]] = {}

    def _label(self, request: Request) -> None:
        """A request with stop strings asks for a move."""
        if request.stop:
            state = self.states[-1]
            expert = state.expert()
            label = None if expert is None else self.wording.word(expert)
            self.labels[request.prompt_ids] = (label, self.wording.words(state))

    def read(self, meta: MetaEpisode) -> Iterator[Demonstration]:
        """The labelled turns of the finished meta-episode."""
        wins: list[list[str]] = []
        for number, episode in enumerate(meta.episodes):
            made: list[str] = []
            for index, turn in enumerate(episode.turns):
                label, legal = self.labels[turn.prompt_ids]
                label = next_of_win(wins, made) or label
                made += [turn.action] if turn.legal and turn.action is not None else []
                if label is not None:
                    where = TurnRef(meta.group, meta.member, number, index, meta.task.opponent)
                    reply = self.chat.encode(f"{self.chat.thought_end}<action>{label}</action>")
                    yield Demonstration(replace(turn, choices=()), reply, legal, where)
            if self.repeat_wins and episode.outcome == "won":
                wins.append(made)


class _Observed:
    """A sampler that reports every request before it passes it on."""

    def __init__(self, inner: Sampler, report: Callable[[Request], None]) -> None:
        self.inner, self.report = inner, report
        self.policy_version, self.capacity = inner.policy_version, inner.capacity
        self.context = inner.context

    def refresh(self, policy_version: int) -> None:
        self.inner.refresh(policy_version)

    def release(self) -> None:
        self.inner.release()

    def sample(self, request: Request) -> Awaitable[Completion]:
        self.report(request)
        return self.inner.sample(request)


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

    A fact that makes the note too long (`fits`) is left out. If none fits, use the shortest.
    """
    facts = facts_of(recap)
    note = ""
    for fact in rng.sample(facts, rng.randint(1, len(facts))):
        longer = f"{note} {fact}".strip()
        note = longer if fits(longer) else note
    return note or min(facts, key=len)
