"""One turn of an agent: calls of tools, and then the reply with the action.

Every call is a request of its own. The prompt of the next request is the prompt before it, the
sampled ids, and the result, so cached prefixes stay valid.
"""

from mage.agent.agent import Agent
from mage.agent.chat import Ids
from mage.agent.dialogue import Dialogue
from mage.agent.history import Prompt
from mage.agent.prompts import template
from mage.agent.tool_process import answer_call
from mage.environments.base import State
from mage.seeds import derive
from mage.types import Completion, ToolCall


async def take_turn(
    agent: Agent, dialogue: Dialogue, state: State, seed: int, tool_seed: int
) -> tuple[Prompt, Completion, tuple[ToolCall, ...]]:
    """The last prompt of a turn, the reply to it, and the calls before it.

    `tool_seed` belongs to the episode: members of a group get the same results for the same calls.
    """
    tools, limits = agent.tools(dialogue.environment), agent.limits
    turn = _Turn(agent, dialogue, dialogue.ask(state), bool(tools))
    prompt, completion = await turn.reply(seed)
    calls: list[ToolCall] = []
    while tools and len(calls) < limits.calls:
        content = agent.read_call(completion)
        if content is None:
            break
        answer = answer_call(tools, limits, state, content, tool_seed)
        last = len(calls) + 1 == limits.calls
        shown = f"{answer.text}\n{template('tools_used')}" if last else answer.text
        calls.append(ToolCall(prompt.ids, completion, shown, answer.failed))
        turn.tail += completion.token_ids + agent.chat.result(shown)
        prompt, completion = await turn.reply(derive(seed, len(calls)))
    return prompt, completion, tuple(calls)


class _Turn:
    """The prompt of a turn: `base` is that of its first request, `tail` the calls and results."""

    def __init__(self, agent: Agent, dialogue: Dialogue, base: Prompt, calls: bool) -> None:
        self.agent, self.dialogue, self.base, self.calls = agent, dialogue, base, calls
        self.tail: Ids = ()

    async def reply(self, seed: int) -> tuple[Prompt, Completion]:
        """A reply. A prompt that is too long is sent with fewer past turns."""
        prompt = self._prompt()
        while self.tail and not prompt.fits and self._shorten():
            prompt = self._prompt()
        completion = await self.agent.reply(prompt.ids, seed, self.calls)
        while completion.finish == "overflow" and self._shorten():
            prompt = self._prompt()
            completion = await self.agent.reply(prompt.ids, seed, self.calls)
        return prompt, completion

    def _prompt(self) -> Prompt:
        if not self.tail:
            return self.base
        ids, room = self.base.ids + self.tail, self.agent.room()
        return Prompt(ids, self.base.folded, room is None or len(ids) <= room)

    def _shorten(self) -> bool:
        shorter = self.dialogue.shorten(self.base)
        self.base = shorter or self.base
        return shorter is not None
