"""Games in the terminal: a person against an opponent or the agent, or an agent that is shown.

Against the agent the person takes the opponent's seat. The agent plays exactly as in training: it
keeps its memory, reflects after every game and adapts to the person.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rich.console import Console
from rich.text import Text

from mage.agent.chat import Ids
from mage.agent.styles import style_of
from mage.agent.tool_process import answer_call
from mage.agent.tools import Tool, ToolLimits, read_tools
from mage.cli.terminal import console as make_console
from mage.engines.base import run
from mage.environments.base import SEATS, Environment, State, score_of
from mage.opponents.base import Knowledge, Opponent, meet, move_rng
from mage.play import PlaySetup, play_meta_episode
from mage.play.episode import apply_move, check_seat
from mage.types import Episode, MetaEpisode, Task, Turn

_KEYS = "type a move, ? to list the legal moves, q to quit"
_TOOLS = "type NAME and a text, or NAME and JSON, as often as you like"


class Quit(Exception):
    """The person has quit."""


# --- A person and a scripted opponent -------------------------------------------------------


def play_person(environment: Environment, task: Task, games: int, console: Console) -> list[float]:
    """Play games of a person against the task's opponent; scores of the finished games."""
    environment.start(environment.episode_seed(task.seed, 0))  # missing data fails before the rules
    _welcome(environment, task.seat, console)
    scores: list[float] = []
    try:
        for number in range(games):
            _head(console, f"game {number + 1} of {games}")
            state = _play_game(environment, task, number, console)
            scores.append(score_of(state, task.seat))
            if not environment.multi_agent:  # in games of two the recap shows the last position
                _say(console, state.observe(task.seat))
            _say(console, state.recap(task.seat), style="bold")
            _say(console, running_score(scores))
    except Quit:
        _say(console, f"\nYou quit. {running_score(scores)}")
    return scores


def _play_game(environment: Environment, task: Task, number: int, console: Console) -> State:
    state, moves = environment.start(environment.episode_seed(task.seed, number)), 0
    tools = read_tools(environment.tools())
    while (mover := state.turn()) is not None:
        check_seat(environment, state, mover)
        if mover == task.seat:
            seed = environment.episode_seed(task.seed, number)
            state.apply(_ask_move(state, mover, console, tools, seed))
        else:
            opponent = meet(task)
            action = opponent.act(state, mover, move_rng(task, environment, number, moves))
            if not state.hides_moves:
                _say(console, f"opponent: {action}", style="dim")
            apply_move(state, action, opponent)
        moves += 1
    return state


SHOWN, LISTED = 9, 40  # legal moves that are shown before a move, and after `?`
LONGEST = 60  # characters of wrong input that a message repeats


def _ask_move(
    state: State, seat: int, console: Console, tools: Sequence[Tool] = (), tool_seed: int = 0
) -> str:
    """Ask until the input is a legal move. A person may call tools as often as they like."""
    legal = state.legal()
    _say(console, state.observe(seat))
    _say(console, _list_moves(legal, SHOWN), style="dim")
    while True:
        said = _ask(console)
        if said and (move := state.read(said)) is not None:
            return move
        if said.lower() in ("q", "quit"):
            raise Quit
        if said == "?":
            _say(console, _list_moves(legal, LISTED))
        elif (result := _use_tool(said, state, tools, tool_seed)) is not None:
            _say(console, result)
        elif said:
            short = f"{said[:LONGEST]!r}{'...' if len(said) > LONGEST else ''}"
            _say(console, f"{short} is not a legal move here ({_KEYS})")


def _use_tool(said: str, state: State, tools: Sequence[Tool], seed: int) -> str | None:
    """The result of `NAME TEXT` or `NAME {JSON}`; None if no tool is named."""
    name, _, rest = said.partition(" ")
    tool = next((one for one in tools if one.name == name), None)
    if tool is None:
        return None
    if not (rest := rest.strip()).startswith("{"):  # a text for the first argument
        rest = json.dumps({one: rest for one in tool.argument_names()[:1] if rest})
    content = f'{{"name": "{name}", "arguments": {rest}}}'
    return answer_call(tools, ToolLimits(), state, content, seed).text


def _list_moves(legal: Sequence[str], most: int) -> str:
    more = f" and {len(legal) - most} more" if len(legal) > most else ""
    return f"legal moves: {', '.join(legal[:most])}{more}"


def _ask(console: Console) -> str:
    try:
        return console.input("your move> ", markup=False).strip()
    except EOFError:
        raise Quit from None


def running_score(scores: list[float]) -> str:
    if not scores:
        return "No game was finished."
    games = "1 game" if len(scores) == 1 else f"{len(scores)} games"
    return f"Your score: {sum(scores):+g} over {games}."


def _welcome(environment: Environment, seat: int, console: Console) -> None:
    _say(console, f"{environment.rules()}\n{environment.instance(seat)}")
    if tools := read_tools(environment.tools()):
        _say(console, "\n".join([f"Tools ({_TOOLS}):", *(tool.line() for tool in tools)]))
    _say(console, f"({_KEYS})", style="dim")


def _say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: texts of games and models must not be read as markup."""
    console.print(Text(text, style=style))


def _head(console: Console, text: str) -> None:
    _say(console, f"\n── {text} ──", style="cyan")


# --- A person and the agent -----------------------------------------------------------------


class Person(Opponent):
    """The person at the keyboard. Not for recipes: a person is not stationary."""

    name: ClassVar[str] = "person"
    policy_is: ClassVar[Knowledge] = "unknown"
    tools: tuple[Any, ...] = ()  # of the environment
    tool_seed: int = 0

    def policy(self, state: State, seat: int) -> Mapping[str, float]:
        raise NotImplementedError("the policy of a person is unknown")

    def act(self, state: State, seat: int, rng: random.Random) -> str:
        return _ask_move(state, seat, make_console(), self.tools, self.tool_seed)


PERSON = f"{Person.__module__}.{Person.__name__}"


def play_agent(setup: PlaySetup, task: Task, console: Console) -> list[float]:
    """Play games of a person against the agent in the task's seat; the person's scores."""
    environment, seat = setup.environment, 1 - task.seat
    scores: list[float] = []

    def show_episode(number: int, memory: str, episode: Episode) -> None:
        state = _replay(environment, environment.episode_seed(task.seed, number), episode)
        over = state.turn() is None
        scores.append(state.scores()[seat] if over else -episode.score)
        _say(
            console,
            state.recap(seat) if over else "The agent gave no legal move and forfeits.",
            style="bold",
        )
        _say(console, running_score(scores))
        if number + 1 < setup.episodes:
            _head(console, f"game {number + 2} of {setup.episodes}")

    person = Person(tools=read_tools(environment.tools()), tool_seed=task.seed)
    setup = replace(setup, rivals={task.opponent: person})
    _welcome(environment, seat, console)
    _head(console, f"game 1 of {setup.episodes}")
    try:
        run([play_meta_episode(setup, task, 0, 0, task.seed, show_episode)])
    except Quit:
        _say(console, f"\nYou quit. {running_score(scores)}")
    return scores


def _replay(environment: Environment, episode_seed: int, episode: Episode) -> State:
    """The position at the end of an episode, computed from its moves."""
    state = environment.start(episode_seed)
    for move in episode.moves:
        state.apply(move.action)
    return state


# --- An agent that is shown -----------------------------------------------------------------


def watch_agent(setup: PlaySetup, task: Task, console: Console) -> MetaEpisode:
    """Play an agent's games and print every new line of its prompts, replies and notes."""
    shown = _Shown(setup, task.seat, console)

    def show_episode(number: int, memory: str, episode: Episode) -> None:
        if episode.reflection is not None:
            _head(console, f"note after game {number}")
            shown.turn(episode.reflection)
        held = "in the prompt below" if memory else "empty"
        _head(console, f"game {number + 1} of {setup.episodes}, memory: {held}")
        for turn in episode.turns:
            shown.turn(turn)
        _say(console, f"{episode.recap} ({episode.outcome}, {episode.score:+g})", style="bold")

    alone = "The agent plays alone."
    against = f"The agent moves {SEATS[task.seat]} against {task.opponent}."
    _say(console, against if task.opponent else alone)
    return run([play_meta_episode(setup, task, 0, 0, task.seed, show_episode)])[0]


class _Shown:
    """Prints the new part of every prompt: the next message, or a new chat below the rules."""

    def __init__(self, setup: PlaySetup, seat: int, console: Console) -> None:
        self.chat, self.console = setup.agent.chat, console
        ask = partial(style_of(setup.agent).ask, setup.agent, setup.environment, seat)
        self.rules = len(_common(ask("a"), ask("b")))
        self.before: tuple[Ids, Ids] = ((), ())  # the last prompt, alone and with its reply

    def turn(self, turn: Turn) -> None:
        prompt, replied = self.before
        common = len(_common(turn.prompt_ids, replied))
        whole = [len(ids) for ids in (replied, prompt) if len(ids) <= common]
        known = whole[0] if whole else min(common, self.rules)
        self.before = (turn.prompt_ids, turn.prompt_ids + turn.completion.token_ids)
        _say(self.console, self.chat.decode(turn.prompt_ids[known:]), style="dim")
        read = ""
        if turn.kind != "reflect":
            read = f"   [{'legal' if turn.legal else 'not legal'}: {turn.action or 'no action'}]"
        self.console.print(
            Text(turn.completion.text, style="green"), Text(read, style="" if turn.legal else "red")
        )


def _common(one: Ids, other: Ids) -> Ids:
    """The longest common prefix."""
    length = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return one[:length]
