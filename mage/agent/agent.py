"""The agent: a model with its chat format, and how its reply is read.

Chat prompts are append-only: rules and answer format (system message), then instance, memory, and
the turns of this episode. The history keeps only the action of a past reply, without thoughts,
unless the rules ask for a sentence before the action. The LAST complete <action> after the end of
thinking counts. `mage.agent.styles` has the two styles.
"""

import json
import random
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from mage.agent.chat import TEXTS_KEPT, Chat, Ids
from mage.agent.history import History
from mage.agent.prompts import template
from mage.agent.thoughts import CLOSE as THOUGHT_END
from mage.agent.thoughts import is_thinking, without_thoughts
from mage.agent.tools import CALL_END, Tool, ToolLimits, read_call, read_tools, tools_text
from mage.environments.base import Environment, State
from mage.types import Choices, Completion, PromptStyle, Request, ToolCall

CLOSE = "</action>"
_ACTION = re.compile(r"<action>((?:(?!<action>).)*?)</action>", re.DOTALL)
LONGEST_NOTE = 2000  # characters of a stored reflection, as in the published code


class Sampler(Protocol):
    """The part of an engine that an agent uses (see `mage.engines.base.Engine`)."""

    policy_version: int
    capacity: int | None
    context: int | None

    def refresh(self, policy_version: int) -> None:
        """The weights have changed: drop all cached results of the old ones."""

    def release(self) -> None:
        """Free the memory of cached results until the next `refresh`."""

    def sample(self, request: Request) -> Awaitable[Completion]:
        """Complete one request."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling parameters of replies and reflections."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    reflection_tokens: int = 48


def read_action(text: str, opened: bool = False) -> str | None:
    """The last complete action after the end of thinking; `opened`: the prompt began a thought.

    >>> read_action("<think>perhaps <action>bet</action></think><action>pass</action>")
    'pass'
    """
    if is_thinking(text, opened):
        return None
    after = text.rfind(THOUGHT_END) + len(THOUGHT_END) if THOUGHT_END in text else 0
    found = list(_ACTION.finditer(text, after))
    return found[-1][1].strip() if found else None


@dataclass(frozen=True, slots=True)
class Agent:
    """A model with its chat format and sampling parameters.

    `window`: latest turns that are shown in full; None = all; 0 = the present observation alone,
    without any past turn. `fold`: see `History`. `think_first`: the rules ask for one short
    sentence before the action, and the history keeps it. `example`: the rules show an answer, not
    only its form. `prompts`: the style in which the agent is spoken to. `limits`: how much the
    agent may use the tools of an environment.
    """

    engine: Sampler
    chat: Chat
    sampling: SamplingOptions
    window: int | None = None
    fold: int = 1
    think_first: bool = False
    example: bool = True
    prompts: PromptStyle = "chat"
    limits: ToolLimits = ToolLimits()  # noqa: RUF009 (it is frozen)

    def tools(self, environment: Environment) -> tuple[Tool, ...]:
        """The tools that the agent may call; the published prompts have none."""
        offers = self.limits.calls and self.prompts == "chat"
        return read_tools(environment.tools()) if offers else ()

    def begin(self, environment: Environment, user: str) -> Ids:
        """The prompt of the first turn: rules, answer format, tools, and `user`."""
        system = system_text(environment, self.think_first, self.example)
        tools = self.tools(environment)
        if not tools:
            return self.chat.first(system, user)
        listed = self.chat.writes_calls
        told = tools_text(tools, self.limits.calls, listed)
        schemas = json.dumps([tool.schema() for tool in tools]) if listed else ""
        return self.chat.first(f"{system}\n{told}", user, schemas)

    def history(self) -> History:
        """The empty history of an episode."""
        return History(self.chat, self.window, self.room(), self.fold)

    def room(self) -> int | None:
        """The largest prompt that leaves room for a reply of full length; None = no limit."""
        context = self.engine.context
        return None if context is None else context - self.sampling.max_tokens

    async def reply(self, prompt_ids: Ids, seed: int, calls: bool = False) -> Completion:
        """A reply up to its action, or up to a call of a tool.

        A closing tag inside a thought does not end the reply.
        """
        limit, stop = self.sampling.max_tokens, (CLOSE, CALL_END) if calls else (CLOSE,)
        completion = await self._draw(prompt_ids, limit, seed, stop)
        while (
            completion.finish == "stop"
            and self.is_thinking(completion)
            and len(completion.token_ids) < limit
        ):
            more = await self._draw(
                prompt_ids + completion.token_ids,
                limit - len(completion.token_ids),
                seed + len(completion.token_ids),
                stop,
            )
            completion = replace(
                more,
                token_ids=completion.token_ids + more.token_ids,
                logprobs=completion.logprobs + more.logprobs,
                text=completion.text + more.text,
            )
        return completion

    async def write(self, prompt_ids: Ids, seed: int) -> Completion:
        """Free text up to the end token."""
        return await self._draw(prompt_ids, self.sampling.reflection_tokens, seed, ())

    async def _draw(
        self, prompt_ids: Ids, max_tokens: int, seed: int, stop: tuple[str, ...]
    ) -> Completion:
        draw = self.sampling
        return await self.engine.sample(
            Request(prompt_ids, max_tokens, seed, draw.temperature, draw.top_p, draw.top_k, stop)
        )

    def choices(self, completion: Completion, legal: tuple[str, ...]) -> Choices:
        """The positions where the token sequences of legal moves diverge, with the tokens there.

        The entropy of the action is the entropy among these tokens, summed over the positions
        (chain rule). It is at most the logarithm of the number of legal moves, and independent of
        all other tokens. A reply without an action, or with an action in other tokens than the
        tokenizer's, has no such positions.
        """
        return _diverging(self.chat, completion.token_ids, legal)

    def spell_moves(
        self, completion: Completion, legal: tuple[str, ...]
    ) -> tuple[Ids, tuple[Ids, ...]]:
        """The ids of a reply before its move, and the ids of every legal move in its place.

        A move includes the end of the action. For a reply without an action the moves are whole
        replies.
        """
        opening = self.chat.encode("<action>")
        spelled = tuple(self.chat.encode(f"<action>{word}</action>") for word in legal)
        start = _find_opening(completion.token_ids, opening)
        if start is None:
            return (), tuple(self.action_reply(word) for word in legal)
        shared = len(opening) if all(ids[: len(opening)] == opening for ids in spelled) else 0
        return completion.token_ids[: start + shared], tuple(ids[shared:] for ids in spelled)

    def is_thinking(self, completion: Completion) -> bool:
        """Whether a reply ends inside a thought."""
        return is_thinking(completion.text, self.chat.opens_thought)

    def is_cut_off(self, completion: Completion) -> bool:
        """Whether the length limit ended a reply inside a thought."""
        return completion.finish in ("length", "stop") and self.is_thinking(completion)

    def read(self, completion: Completion) -> str | None:
        """The action of a reply, or None."""
        return read_action(completion.text, self.chat.opens_thought)

    def read_call(self, completion: Completion) -> str | None:
        """The call of a tool in a reply that ends with it, or None."""
        ended = completion.finish == "stop"
        return read_call(completion.text, self.chat.opens_thought) if ended else None

    def read_text(self, completion: Completion) -> str:
        """Free text without thoughts."""
        return without_thoughts(completion.text, self.chat.opens_thought)

    def action_reply(self, action: str) -> Ids:
        """An action as a reply without thoughts."""
        return self.chat.encode(self._closed(f"<action>{action}</action>"))

    def past_reply(self, completion: Completion, action: str | None) -> Ids:
        """A past reply in the history: its action only (the sampled ids if it was no more).

        With `think_first` it is the whole reply: a history of bare actions would teach the model
        by example to leave the sentence out. A reply without an action is shown as `?`.
        """
        shown = "?" if action is None else action
        if self.think_first and action is not None and self._is_plain(completion):
            return completion.token_ids
        if completion.text == f"<action>{shown}</action>" and not self.chat.opens_thought:
            return completion.token_ids
        return self.action_reply(shown)

    def past_calls(self, calls: Sequence[ToolCall]) -> Ids:
        """Past calls in the history, with their results and without thoughts."""
        ids: Ids = ()
        for call in calls:
            text = self.read_text(call.completion)
            plain = text == call.completion.text
            ids += call.completion.token_ids if plain else self.chat.encode(self._closed(text))
            ids += self.chat.result(call.result)
        return ids

    def _closed(self, text: str) -> str:
        """A text as a reply; a thought that the prompt began is closed."""
        return f"{self.chat.thought_end}{text.lstrip()}"

    def _is_plain(self, completion: Completion) -> bool:
        """Whether a reply ends with its action and has no thoughts between tags."""
        return completion.finish == "stop" and self.read_text(completion) == completion.text


@lru_cache(maxsize=TEXTS_KEPT)
def _diverging(chat: Chat, reply: Ids, legal: tuple[str, ...]) -> Choices:
    spelled = [chat.encode(f"<action>{word}</action>") for word in legal]
    start = _find_opening(reply, chat.encode("<action>"))
    if start is None:
        return ()
    found = []
    for place, token in enumerate(reply[start:]):
        spelled = [ids for ids in spelled if len(ids) > place]  # all agree with the reply so far
        tokens = {ids[place] for ids in spelled}
        if len(tokens) > 1:
            found.append((start + place, tuple(sorted(tokens))))
        spelled = [ids for ids in spelled if ids[place] == token]
    return tuple(found)


def _find_opening(reply: Ids, opening: Ids) -> int | None:
    """Where the last action of a reply begins."""
    places = range(len(reply) - 1, -1, -1)
    return next((at for at in places if reply[at : at + len(opening)] == opening), None)


def system_text(environment: Environment, think_first: bool = False, example: bool = True) -> str:
    """Rules and answer format: the same for all tasks of an environment, so cached once."""
    kind = "game" if environment.multi_agent else "task"
    asked = {
        word: template(f"{word}_{kind}") + " " if think_first else ""
        for word in ("thought", "sentence")
    }
    form = template("form")
    if example:
        form = template("example").format(example=environment.example_action(), **asked)
    return template(f"system_{kind}").format(rules=environment.rules(), form=form, **asked)


def random_move(state: State, rng: random.Random) -> str:
    """A legal move, drawn uniformly."""
    return rng.choice(state.legal())


def episode_text(
    environment: Environment, seat: int, memory: str, number: int, count: int, observation: str
) -> str:
    shown = f"{memory}\n" if memory else ""
    return template("episode").format(
        instance=environment.instance(seat),
        memory=shown,
        number=number,
        count=count,
        observation=observation,
    )


def illegal_text(observation: str) -> str:
    return template("illegal").format(observation=observation)


def reflect_text(environment: Environment, seat: int, number: int, count: int, recap: str) -> str:
    return template("reflect").format(
        instance=environment.instance(seat), number=number, count=count, recap=recap
    )
