"""The nouns. Every stage of the loop makes a new record from the one before; none is filled in later.

    Turn -> Return -> Credit -> Sample -> Batch

A `MetaEpisode` is the unit that is grouped, stored, shown and resumed. Axis suffixes used everywhere: `_P` problems
(groups), `_G` members of a group, `_T` tokens.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["play", "reflect"]
Outcome = Literal["won", "lost", "drawn"]
Ending = Literal["finished", "illegal", "turn_limit", "error"]
Finish = Literal["stop", "eos", "length"]
Split = Literal["train", "test", "ood"]
Choices = tuple[
    tuple[int, tuple[int, ...]], ...
]  # (position in the reply, tokens that legal moves have there)


@dataclass(frozen=True, slots=True)
class Task:
    """What stays fixed in a meta-episode. All members of a group share one."""

    environment: str
    seed: int
    seat: int
    opponent: str
    split: Split


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to complete and how. Two requests are never equal, so a request can be its own ticket.

    `seed` fixes the reply whoever shares the batch; `stop` ends the reply after the first of these strings, which
    stays part of it. `temperature = 0` takes the most likely token.
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
    """A reply exactly as the engine made it: these ids and logprobs are the ones that are trained on."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Finish
    policy_version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the agent: a move, or the reflection it writes after an episode.

    `anchor` is the plain state without history; `choices` are the places in the completion where legal moves part, each
    with the tokens they part into; `penalty` (0 or negative) is for an illegal or too long reply; the task's reward is not part of it.
    """

    kind: Kind
    anchor: str
    observation: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    action: str | None
    choices: Choices
    legal: bool
    penalty: float


@dataclass(frozen=True, slots=True)
class Move:
    """What one seat did, the opponent's included."""

    seat: int
    action: str


@dataclass(frozen=True, slots=True)
class Episode:
    """One game from deal to result. `reflection` is the turn that was written BEFORE it, after the previous episode.

    `score` is in the game's own units (chips, +-1); `reward` is the task reward R_n that training sees. `regret` is how much worse than the best
    play a turn was on average, among those after which success was still possible; None where there is none or the world does not know.
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


@dataclass(frozen=True, slots=True)
class MetaEpisode:
    """N episodes of one member against one task; `memories[n]` is the text the agent was shown in episode n.

    `asked[n]` are the tokens of what the memory itself asked the model around episode n, beside replies and reflections.
    """

    task: Task
    group: int
    member: int
    episodes: tuple[Episode, ...]
    memories: tuple[str, ...]
    policy_version: int
    asked: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a turn: group, member, episode (from 0) and index in the episode; a reflection has index -1."""

    group: int
    member: int
    episode: int
    index: int
    opponent: str


@dataclass(frozen=True, slots=True)
class Return:
    """What followed a turn: G_{n,t} (`value`), G_{n,1} (`episode_value`) and the episode's own reward R_n."""

    turn: Turn
    where: Where
    value: float
    episode_value: float
    episode_reward: float


@dataclass(frozen=True, slots=True)
class Credit:
    """A return against its baseline. `parts` names what the advantage is the sum of, for people who ask why."""

    source: Return
    advantage: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of training data: prompt and reply ids; `old_logprobs` has one entry per REPLY token."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantage: float
    choices: Choices
    kind: Kind
    where: Where


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one optimizer step; losses are means over ALL reply tokens of the batch."""

    samples: tuple[Sample, ...]

    @property
    def reply_tokens(self) -> int:
        return sum(len(sample.reply_ids) for sample in self.samples)
