"""Scripted play in any environment: random or expert moves, and notes that state facts.

Random moves teach the answer format and nothing else. Expert moves (`State.expert`) also teach how
to win; random moves among them (`noise`) are played but not taught, so that the memory of later
episodes also holds failures. With `repeat_wins` the taught move after a won episode is the move of
that episode, so that the memory of a success is worth reading. The scripted player reads the state
and not the prompt. Its replies take the same path as a model's, so the prompts are exactly those of
real play.
"""

import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mage.agent.agent import Sampler, random_move
from mage.agent.chat import Ids
from mage.config.errors import UserError
from mage.engines.base import ScriptedEngine, run
from mage.environments.base import Environment, State
from mage.play import RAN_OUT, PlaySetup, play_meta_episode
from mage.seeds import derive
from mage.types import Completion, MetaEpisode, Request, Sample, Task, Turn, TurnRef


@dataclass(frozen=True, slots=True)
class Script:
    """How the scripted player chooses its moves. `noise` is the share of random moves."""

    expert: bool = False
    noise: float = 0.0
    repeat_wins: bool = False


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A turn of scripted play. `reply_ids` is the reply that the model should learn, end included.

    `legal` holds the legal moves of the turn; it is empty for a note.
    """

    turn: Turn
    reply_ids: Ids
    legal: tuple[str, ...]
    where: TurnRef

    def sample(self) -> Sample:
        """The demonstration as a row of training data."""
        return Sample(
            self.turn.prompt_ids,
            self.reply_ids,
            (0.0,) * len(self.reply_ids),
            1.0,
            self.turn.choices,
            self.turn.kind,
            self.where,
        )


def write_demonstrations(
    setup: PlaySetup, tasks: Sequence[Task], seed: int, script: Script | None = None
) -> list[Demonstration]:
    """All taught turns of one scripted meta-episode per task, in order of play.

    Moves are random without a script.
    """
    players = [
        DemonstrationPlayer(setup, task, derive(seed, number), script or Script())
        for number, task in enumerate(tasks)
    ]
    games = [
        play_meta_episode(scribe.setup, scribe.task, number, 0, derive(seed, number))
        for number, scribe in enumerate(players)
    ]
    return [
        demonstration
        for scribe, meta in zip(players, run(games), strict=True)
        for demonstration in scribe.read(meta)
    ]


class DemonstrationPlayer:
    """The scripted player of one meta-episode."""

    def __init__(self, setup: PlaySetup, task: Task, seed: int, script: Script) -> None:
        self.task, self.rng, self.script = task, random.Random(seed), script
        self.chat = setup.agent.chat
        self.states: list[State] = []
        self.moves: list[list[str]] = []  # of every state
        self.legal: list[tuple[str, ...]] = []
        self.taught: list[bool] = []  # of every move
        engine = ScriptedEngine(self._reply, self.chat.encode)
        world = _watched(setup.environment, _seeds(setup, task), self.states)
        self.setup = replace(setup, environment=world, agent=replace(setup.agent, engine=engine))

    def _reply(self, request: Request) -> str:
        """A request with stop strings asks for a move; any other request asks for a note."""
        state = self.states[-1]
        if not request.stop:
            over = state.turn() is None
            known = over or not self.setup.environment.multi_agent
            recap = " ".join(
                ([] if over else [RAN_OUT]) + ([state.recap(self.task.seat)] if known else [])
            )  # the same text as in `play`
            end = self.chat.thought_end
            return end + factual_note(
                recap, self.rng, lambda text: len(self.chat.encode(end + text)) < request.max_tokens
            )
        self.legal.append(state.legal())
        text = f"{self.chat.thought_end}<action>{self._choose_move(state)}</action>"
        if (length := len(self.chat.encode(text))) > request.max_tokens:
            raise UserError(
                f"agent.max_tokens = {request.max_tokens} is too small: the answer {text} takes "
                f"{length} tokens with this model; set agent.max_tokens to {length} or more"
            )
        return text

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
    games = [
        play_meta_episode(player.setup, player.task, number, 0, derive(seed, number))
        for number, player in enumerate(players)
    ]
    played = run(games, limit=setup.agent.engine.capacity)
    return [
        demonstration
        for player, meta in zip(players, played, strict=True)
        if not (after_loss and meta.episodes[0].outcome == "won")
        for demonstration in player.read(meta)
        if not (after_loss and demonstration.where.episode == 0)
    ]


class LabelledPlayer:
    """The model as player of one meta-episode, with the expert's move for every request."""

    def __init__(self, setup: PlaySetup, task: Task, *, repeat_wins: bool = False) -> None:
        self.task, self.chat, self.repeat_wins = task, setup.agent.chat, repeat_wins
        self.states: list[State] = []
        self.labels: dict[Ids, tuple[str | None, tuple[str, ...]]] = {}
        world = _watched(setup.environment, _seeds(setup, task), self.states)
        sampler = _Observed(setup.agent.engine, self._label)
        self.setup = replace(setup, environment=world, agent=replace(setup.agent, engine=sampler))

    def _label(self, request: Request) -> None:
        """A request with stop strings asks for a move."""
        if request.stop:
            state = self.states[-1]
            self.labels[request.prompt_ids] = (state.expert(), state.legal())

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

    def sample(self, request: Request) -> Awaitable[Completion]:
        self.report(request)
        return self.inner.sample(request)


def _seeds(setup: PlaySetup, task: Task) -> set[int]:
    """The seeds of all episodes of a task."""
    return {setup.environment.episode_seed(task.seed, number) for number in range(setup.episodes)}


def _watched(environment: Environment, seeds: Collection[int], states: list[State]) -> Environment:
    """The same environment, which also records every state that it starts from one of `seeds`.

    Other seeds are not recorded: an environment may start a state only to show an example move.
    """
    kind: Any = type(environment)

    class Watched(kind):  # type: ignore[misc]
        def start(self, seed: int) -> State:
            state: State = super().start(seed)
            if seed in seeds:
                states.append(state)
            return state

    return Watched.model_validate(environment.model_dump())  # type: ignore[no-any-return]


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
