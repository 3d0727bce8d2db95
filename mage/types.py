"""The records. Every stage of the loop makes a new record from the previous one.

    Turn -> Return -> Credit -> Sample

A `MetaEpisode` is the unit that is grouped, stored, shown and resumed. Axis suffixes: `_P` problems
(groups), `_G` members of a group, `_T` tokens.
"""

from dataclasses import dataclass, field
from typing import Literal

TurnKind = Literal["play", "reflect"]
ReplyKind = Literal["play", "reflect", "call"]  # of a training row; call: a call of a tool
Outcome = Literal["won", "lost", "drawn"]
Ending = Literal["finished", "illegal", "turn_limit", "error"]
Finish = Literal["stop", "eos", "length", "overflow"]  # overflow: the prompt did not fit
Split = Literal["train", "test", "ood"]
PromptStyle = Literal["chat", "published"]  # how the agent is spoken to (docs/prompts.md)
Member = tuple[int, int]  # number of the group, number in the group
# (position in the reply, the tokens that legal moves have there)
Choices = tuple[tuple[int, tuple[int, ...]], ...]
UNSTORED = {"stored": False}  # metadata of a field that transcripts do not contain
SPARSE = {"stored": "if set"}  # metadata of a field that transcripts contain unless it is empty


@dataclass(frozen=True, slots=True)
class Task:
    """What is fixed in a meta-episode. All members of a group share one task."""

    environment: str
    seed: int
    seat: int
    opponent: str
    split: Split


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to complete and how. Two requests are never equal, so a request can be a dictionary key.

    `seed` fixes the reply, whatever else is in the batch. The reply ends after the first of the
    `stop` strings and includes it. `temperature = 0` takes the most likely token.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply exactly as the engine made it. Training uses these ids and logprobs."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Finish
    policy_version: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A reply that called a tool, and the result that the agent was shown.

    `failed`: the result is the text of an error.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    result: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the agent: a move, or the reflection after an episode.

    `anchor` is the plain state without history. `choices` are the positions in the completion where
    the token sequences of legal moves diverge, with the possible tokens. `penalty` (0 or negative)
    is for an illegal or too long reply. It does not contain the task reward. `cut_off`: the reply
    reached its length limit inside a thought. `folded`: number of past turns that the prompt shows
    in one line only. `overflow`: prompt and reply do not fit into the context. `legal_moves` are
    the moves that were possible. They are not stored with transcripts, so a turn that was read
    from a file has none. `calls` are the replies before this one that called tools. The prompt
    contains them and their results.
    """

    kind: TurnKind
    anchor: str
    observation: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    action: str | None
    choices: Choices
    legal: bool
    penalty: float
    cut_off: bool = False
    folded: int = 0
    overflow: bool = False
    legal_moves: tuple[str, ...] = field(default=(), compare=False, metadata=UNSTORED)
    calls: tuple[ToolCall, ...] = field(default=(), metadata=SPARSE)

    @property
    def tokens(self) -> int:
        """All tokens that the model wrote in this turn."""
        replies = [*(call.completion for call in self.calls), self.completion]
        return sum(len(reply.token_ids) for reply in replies)

    @property
    def illegal(self) -> bool:
        """No legal action, although the reply was complete."""
        return not (self.legal or self.cut_off or self.overflow)


@dataclass(frozen=True, slots=True)
class Move:
    """A move of one seat: the agent or the opponent."""

    seat: int
    action: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One game from deal to result.

    `reflection` is the turn that was written BEFORE this episode, after the previous one. `score`
    is in units of the game (chips, +-1). `reward` is the task reward R_n of training. `regret` is
    the mean loss of a turn against the best play, over the turns after which success was still
    possible. It is None if there is no such turn or if the environment does not know it. `gains`
    are the shares of `reward` that were scored after each turn, in environments that score every
    turn; empty in all others. `review` is what the agent reads about the episode when it reflects,
    if that is not the recap. It is not stored with transcripts. `bonuses` are what the functions of
    `play.rewards` have added to `reward`, by name.
    """

    turns: tuple[Turn, ...]
    reflection: Turn | None
    moves: tuple[Move, ...]
    score: float
    reward: float
    outcome: Outcome
    ending: Ending
    recap: str
    regret: float | None = None
    gains: tuple[float, ...] = ()
    review: str = field(default="", compare=False, metadata=UNSTORED)
    bonuses: tuple[tuple[str, float], ...] = field(default=(), metadata=SPARSE)

    @property
    def replies(self) -> tuple[Turn, ...]:
        """Everything that the model wrote in the episode, with the reflection before it."""
        return (*([self.reflection] if self.reflection else ()), *self.turns)


@dataclass(frozen=True, slots=True)
class MetaEpisode:
    """N episodes of one member on one task. `memories[n]` is the memory text shown in episode n.

    `asked[n]` counts the tokens of the answers that the memory itself requested from the model
    around episode n. Replies and reflections are not included.
    """

    task: Task
    group: int
    member: int
    episodes: tuple[Episode, ...]
    memories: tuple[str, ...]
    policy_version: int
    asked: tuple[int, ...] = ()

    @property
    def generated_tokens(self) -> int:
        """All tokens that the model wrote: moves, reflections, and answers to the memory."""
        turns = [turn for episode in self.episodes for turn in episode.replies]
        return sum(turn.tokens for turn in turns) + sum(self.asked)

    def where(self, episode: int, index: int) -> "TurnRef":
        """The place of a turn of this meta-episode."""
        role = f"{self.task.environment}/{self.task.seat}"
        return TurnRef(self.group, self.member, episode, index, self.task.opponent, role)


@dataclass(frozen=True, slots=True)
class TurnRef:
    """The place of a turn. `episode` and `index` count from 0; a reflection has index -1.

    `role` names the world and the agent's seat in it.
    """

    group: int
    member: int
    episode: int
    index: int
    opponent: str
    role: str = ""


NOWHERE = TurnRef(0, 0, 0, 0, "")  # of a row that belongs to no turn


@dataclass(frozen=True, slots=True)
class Return:
    """The return of a turn: G_{n,t} (`value`) and G_{n,1} (`episode_value`).

    `episode_reward` is the task reward R_n, `meta_reward` is r_n (mage/credit/returns.py).
    """

    turn: Turn
    where: TurnRef
    value: float
    episode_value: float
    episode_reward: float
    meta_reward: float


@dataclass(frozen=True, slots=True)
class Credit:
    """A return against its baseline. The advantage is the sum of the named `parts`."""

    source: Return
    advantage: float
    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, source: Return, **parts: float) -> "Credit":
        """The credit with these parts."""
        first, *others = parts.values()
        return cls(source, sum(others, first), tuple(parts.items()))


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row: prompt and reply ids. `old_logprobs` has one entry per REPLY token."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantage: float
    choices: Choices
    kind: ReplyKind
    where: TurnRef

    @classmethod
    def to_score(
        cls, prompt_ids: tuple[int, ...], reply_ids: tuple[int, ...], where: TurnRef = NOWHERE
    ) -> "Sample":
        """A row that is scored and not trained: without old logprobs, advantage and choices."""
        return cls(prompt_ids, reply_ids, (0.0,) * len(reply_ids), 0.0, (), "play", where)
