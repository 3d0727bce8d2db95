"""The prompts of a recipe as its model gets them, from a short scripted play on the real path.

The player makes random legal moves and writes a fixed note. No model is loaded: without a chat
template the prompts are messages, with one they need the tokenizer of the model only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mage.agent.chat import Chat
from mage.agent.messages import MessageChat
from mage.config.recipe import Recipe
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.scripted import Script, write_demonstrations
from mage.models.base import base_folder
from mage.training.context import scripted_setup
from mage.training.tasks import draw_tasks

_NOTE = "(what the agent has written)"


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """One prompt: what it asks for, its messages, and its text with the chat template."""

    title: str
    messages: tuple[tuple[str, str], ...]  # role and text
    text: str | None = None


def show_prompts(recipe: Recipe, template: bool = False) -> list[ShownPrompt]:
    """The first turn, the request for a reflection, and a later turn with memory, if they differ.

    `template`: also as text with the chat template of the recipe's model, which must be here.
    """
    messages = MessageChat()
    found = [
        ShownPrompt(title, tuple((one["role"], one["content"]) for one in messages.messages(ids)))
        for title, ids in _prompts(recipe, messages)
    ]
    if not template:
        return found
    chat = Chat.load(base_folder(recipe), recipe.agent.thinking)
    texts = [_decode(chat, ids) for _, ids in _prompts(recipe, chat)]
    pairs = zip(found, texts, strict=True)
    return [replace(one, text=text) for one, text in pairs]


def _prompts(recipe: Recipe, chat: Chat) -> Iterator[tuple[str, tuple[int, ...]]]:
    task = draw_tasks(recipe, 0)[0][0]
    recipe.environment().check_data()
    setup = replace(scripted_setup(recipe, chat), episodes=recipe.play.episodes)
    turns = write_demonstrations(setup, [task], 0, Script(note=_NOTE))
    plays = [turn for turn in turns if turn.kind == "play"]
    yield "episode 1, turn 1", plays[0].turn.prompt_ids
    for turn in turns:
        if turn.kind == "reflect" and turn.where.episode == 1:
            yield "reflection after episode 1", turn.turn.prompt_ids
    last = _last(plays)
    if last is not plays[0]:  # with one episode of one turn they are the same
        place = f"episode {last.where.episode + 1}, turn {last.where.index + 1}"
        yield place, last.turn.prompt_ids


def _last(plays: Sequence[Demonstration]) -> Demonstration:
    """The last turn of the last episode: it has a memory and past turns."""
    return max(plays, key=lambda turn: (turn.where.episode, turn.where.index))


def _decode(chat: Chat, ids: tuple[int, ...]) -> str:
    return str(chat.tokenizer.decode(list(ids), skip_special_tokens=False))
