"""One episode against the task's opponent, and the reflection after it."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from mage.agent.agent import Agent
from mage.agent.dialogue import Dialogue
from mage.agent.history import Prompt
from mage.agent.styles import open_dialogue, style_of
from mage.agent.turns import take_turn
from mage.config.errors import UserError
from mage.config.returned import is_outside
from mage.environments.base import Environment, State, score_of
from mage.memory.base import Memory
from mage.opponents.base import Opponent, meet, move_rng
from mage.play.policy import PolicyCalls, PolicyPlayer, Seen
from mage.play.rewards import RewardTerm, add_rewards
from mage.seeds import derive
from mage.types import Completion, Ending, Episode, Move, Task, ToolCall, Turn

Recall = Callable[[str], Awaitable[str]]  # opening of an episode -> memory shown in the episode
# Recaps of episodes that did not finish. The first is also shown after one illegal reply among many
# at the turn limit: the words stay, because models were trained with them.
FORFEITED, RAN_OUT = "You gave no legal move and forfeited.", "The turns ran out."


@dataclass(frozen=True, slots=True)
class PlaySetup:
    """Everything that a meta-episode needs besides its task.

    `rivals` are opponents that exist in this process only, by the name in the task: the frozen
    copies of a league, and models as opponents. `writer` writes the reflections; None = the agent
    itself. `shown` has the texts that meta-episodes see instead of their own memory, one per
    episode, by group. `rewards` are functions that add to the reward of an episode. `policy` moves
    instead of the agent. `after_episode` is called after every episode.
    """

    environment: Environment
    agent: Agent
    memory: Memory
    episodes: int = 3
    numbered: bool = True  # prompts say which episode of how many this is; False: always 1 of 1
    stop_on_success: bool = False  # the first won episode ends the meta-episode
    illegal_penalty: float = 0.5
    length_penalty: float = 0.0
    rivals: Mapping[str, Opponent] = field(default_factory=dict)
    writer: Agent | None = None
    shown: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    rewards: tuple[RewardTerm, ...] = ()
    policy: PolicyPlayer | None = None
    after_episode: Callable[[], None] = lambda: None

    def meet(self, task: Task) -> Opponent:
        """The player on the other side of a task."""
        rival = self.rivals.get(task.opponent)
        return meet(task) if rival is None else rival.in_world_of(task)

    def numbering(self, number: int) -> tuple[int, int]:
        """Episode `number` (from 0) as prompts name it: its number from 1, and that of all."""
        return (number + 1, self.episodes) if self.numbered else (1, 1)

    def open_dialogue(self, seat: int, number: int) -> Dialogue:
        """The dialogue of episode `number` (from 0)."""
        return open_dialogue(self.agent, self.environment, seat, *self.numbering(number))


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """One episode of one member. All seeds of the episode are derived from it."""

    task: Task
    number: int
    seed: int


async def play_episode(
    setup: PlaySetup,
    ref: EpisodeRef,
    recall: Recall,
    reflection: Turn | None,
    on_start: Callable[[State], None] | None = None,
) -> tuple[Episode, str]:
    """Play one episode against the task's opponent; returns it and the memory that was shown.

    `reflection` was written after the previous episode; it becomes part of this episode's record.
    `on_start` gets the state of the game before its first move.
    """
    environment, seat = setup.environment, ref.task.seat
    state = environment.start(environment.episode_seed(ref.task.seed, ref.number))
    if on_start is not None:
        on_start(state)
    turns: list[Turn] = []
    moves: list[Move] = []
    scores: list[float] = []  # before every turn, if the environment scores every turn
    dialogue = setup.open_dialogue(seat, ref.number)
    dialogue.training = ref.task.split == "train"
    while True:
        await _let_opponent_move(setup, ref, state, moves)
        ending = find_ending(environment, state, len(turns), all(turn.legal for turn in turns))
        if ending is not None:
            break
        if not turns:
            dialogue.memory = await recall(opening_text(setup, seat, dialogue.observe(state)))
        turn, action = await _play_turn(setup, ref, state, len(turns), dialogue)
        turns.append(turn)
        if environment.scores_every_turn:
            scores.append(score_of(state, seat))
        if action is not None:
            moves.append(Move(seat, action))
            state.apply(action)
        else:
            state.refuse(turn.action)
    episode = _finish(environment, seat, state, turns, moves, ending, reflection)
    episode = add_rewards(episode, setup.rewards)
    gains = _gains(environment, scores, episode.reward)
    return replace(episode, gains=gains, review=dialogue.review(state)), dialogue.memory


def find_ending(
    environment: Environment, state: State, turns: int, all_legal: bool
) -> Ending | None:
    """How an episode has ended after this number of turns of the agent; None if it goes on."""
    if state.turn() is None:
        return "finished"
    if turns < environment.max_turns:
        return None
    return "turn_limit" if all_legal else "illegal"


def _gains(environment: Environment, scores: list[float], reward: float) -> tuple[float, ...]:
    """The reward that was scored after each turn.

    The gains sum to the reward of the episode if the reward before its first turn is 0, otherwise
    to the difference of the two.
    """
    rewards = [*(environment.reward(score) for score in scores), reward]
    return tuple(after - before for before, after in pairwise(rewards))


def opening_text(setup: PlaySetup, seat: int, observation: str) -> str:
    """The opening of an episode. Memories compare openings."""
    return style_of(setup.agent).opening(setup.environment, seat, observation)


async def _let_opponent_move(
    setup: PlaySetup, ref: EpisodeRef, state: State, moves: list[Move]
) -> None:
    while (mover := state.turn()) is not None and mover != ref.task.seat:
        check_seat(setup.environment, state, mover)
        rng = move_rng(ref.task, setup.environment, ref.number, len(moves))
        opponent = setup.meet(ref.task)
        action = await opponent.think(state, mover, rng)
        moves.append(Move(mover, action))
        apply_move(state, action, opponent)


def check_seat(environment: Environment, state: State, mover: int) -> None:
    """Raise a `UserError` if the environment has no such seat."""
    if not 0 <= mover < environment.seats:
        raise UserError(
            f"{type(state).__name__}.turn() returned {mover}, but {environment.name} has "
            f"{'one seat, 0' if environment.seats == 1 else 'the seats 0 and 1'}"
        )


def apply_move(state: State, action: str, opponent: Opponent) -> None:
    """Make the move of an opponent.

    If the environment fails at an illegal move of a user's opponent, the error names the opponent.
    Free text (`read`) is not compared with the legal moves.
    """
    may_fault = is_outside(type(opponent)) and type(state).read is State.read
    legal = state.legal() if may_fault else (action,)
    try:
        state.apply(action)
    except UserError:
        raise
    except Exception as error:
        if action in legal:
            raise
        raise UserError(
            f"the opponent {type(opponent).__name__} made the move {action!r}, which is not legal: "
            f"legal are {', '.join(legal)}"
        ) from error


class _Reply(NamedTuple):
    """The last reply of a turn: its prompt, and its action as written and as a legal move.

    `observation` is what the agent saw before any call of a tool; `prompt` contains the calls.
    """

    observation: str
    prompt: Prompt
    completion: Completion
    calls: tuple[ToolCall, ...]
    written: str | None
    action: str | None


async def _play_turn(
    setup: PlaySetup, ref: EpisodeRef, state: State, number: int, dialogue: Dialogue
) -> tuple[Turn, str | None]:
    """Let the agent call tools and reply, and record it; returns also the legal move, if any."""
    seed = derive(ref.seed, ref.number, number)
    tool_seed = setup.environment.episode_seed(ref.task.seed, ref.number)
    if setup.policy is None:
        prompt, completion, calls = await take_turn(setup.agent, dialogue, state, seed, tool_seed)
    else:
        turn_calls = PolicyCalls(setup.policy, setup.agent, dialogue, state, tool_seed)
        completion = _ask_policy(setup.policy, ref, state, number, dialogue, turn_calls, seed)
        prompt, calls = turn_calls.prompt, tuple(turn_calls.made)
    written = setup.agent.read(completion)
    action = None if written is None else dialogue.wording.read(state, written)
    reply = _Reply(dialogue.observation, prompt, completion, calls, written, action)
    turn = _record_turn(setup, state, dialogue, reply)
    dialogue.add(completion, written, action, calls)
    return turn, action


def _ask_policy(
    player: PolicyPlayer,
    ref: EpisodeRef,
    state: State,
    number: int,
    dialogue: Dialogue,
    calls: PolicyCalls,
    seed: int,
) -> Completion:
    seen = Seen(
        messages=player.chat.messages(calls.prompt.ids),
        observation=dialogue.observation,
        legal=dialogue.wording.words(state),
        memory=dialogue.memory,
        seat=dialogue.seat,
        episode=ref.number + 1,
        turn=number + 1,
        notes=player.notes.setdefault(ref.seed, {}),
        rng=random.Random(seed),
        call=calls.call,
    )
    return player.reply(seen)


def _record_turn(setup: PlaySetup, state: State, dialogue: Dialogue, reply: _Reply) -> Turn:
    """A turn as it is kept: what the agent saw and wrote, and whether that was a legal move."""
    agent, wording, completion = setup.agent, dialogue.wording, reply.completion
    legal, legal_moves = reply.action is not None, wording.words(state)
    replies = [*(call.completion for call in reply.calls), completion]
    overflow = completion.finish == "overflow" or not reply.prompt.fits
    return Turn(
        kind="play",
        anchor=state.anchor(dialogue.seat),
        observation=reply.observation,
        prompt_ids=reply.prompt.ids,
        completion=completion,
        action=reply.written if reply.action is None else wording.word(reply.action),
        choices=agent.choices(completion, legal_moves),
        legal=legal,
        penalty=_penalty(setup, legal or overflow, replies, agent.sampling.max_tokens),
        cut_off=not legal and agent.is_cut_off(completion),
        folded=reply.prompt.folded,
        overflow=overflow,
        legal_moves=legal_moves,
        calls=reply.calls,
    )


def _penalty(setup: PlaySetup, excused: bool, replies: Sequence[Completion], limit: int) -> float:
    """What a turn with these replies costs: 0 or negative.

    `excused`: its action is legal, or prompt and reply do not fit, which is not the model's fault.
    """
    illegal = 0.0 if excused else setup.illegal_penalty
    return min(_length_penalty(setup, reply, limit) for reply in replies) - illegal


def _length_penalty(setup: PlaySetup, completion: Completion, limit: int) -> float:
    """Appendix A, eq. 13: 0 up to half the limit, then linear down to minus the coefficient."""
    over = max(0.0, len(completion.token_ids) - limit / 2) / (limit / 2)
    return -setup.length_penalty * min(1.0, over)


def _finish(
    environment: Environment,
    seat: int,
    state: State,
    turns: list[Turn],
    moves: list[Move],
    ending: Ending,
    reflection: Turn | None,
) -> Episode:
    score = final_score(environment, state, seat, ending)
    return Episode(
        turns=tuple(turns),
        reflection=reflection,
        moves=tuple(moves),
        score=score,
        reward=environment.reward(score),
        outcome=environment.outcome(score),
        ending=ending,
        recap=recap_text(environment, state, seat, ending),
        regret=_mean_known(state.regrets),
    )


def final_score(environment: Environment, state: State, seat: int, ending: Ending) -> float:
    """The score of an episode by its ending: the turn limit scores 0 unless it is a forfeit."""
    if ending == "finished":
        return score_of(state, seat)
    lost = ending == "illegal" and environment.forfeits_at_limit()
    return environment.forfeit_score if lost else 0.0


def recap_text(environment: Environment, state: State, seat: int, ending: Ending) -> str:
    """What the agent is told about an episode. The rest of an unfinished game is not shown."""
    if ending == "finished":
        return state.recap(seat)
    forfeited = ending == "illegal" and environment.forfeits_at_limit()
    note = FORFEITED if forfeited else RAN_OUT
    return note if environment.multi_agent else f"{note} {state.recap(seat)}"


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


async def reflect(setup: PlaySetup, ref: EpisodeRef, episode: Episode) -> Turn:
    """The agent's note on the finished episode: m_n ~ pi(. | x, episode n), true outcome shown.

    A reply without a note (the published style has a tag for it) counts as an illegal action.
    """
    agent = setup.writer or setup.agent
    style, numbering = style_of(agent), setup.numbering(ref.number)
    prompt = style.reflect(agent, setup.environment, ref.task.seat, numbering, episode)
    completion = await agent.write(prompt, derive(ref.seed, ref.number, "reflect"))
    legal = style.read_note(agent, completion) is not None
    overflow = completion.finish == "overflow"
    return Turn(
        kind="reflect",
        anchor="reflection",
        observation=episode.recap,
        prompt_ids=prompt,
        completion=completion,
        action=None,
        choices=(),
        legal=legal,
        penalty=_penalty(setup, legal or overflow, [completion], agent.sampling.reflection_tokens),
        cut_off=agent.is_cut_off(completion),
        overflow=overflow,
    )
