"""Thinking models: prompts, replies, history, memory and counts, with scripted replies."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from toys import byte_chat

from mage.agent.agent import Agent, SamplingOptions, read_action
from mage.agent.chat import Chat, Thinking
from mage.agent.styles import style_of
from mage.agent.thoughts import is_thinking, without_thoughts
from mage.config.loading import load_recipe
from mage.engines.base import ScriptedEngine, run
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.evaluation.rows import task_row
from mage.learn.imitate.scripted import write_demonstrations
from mage.memory.amem import AMem
from mage.memory.base import Memory
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.training.build import build_components
from mage.training.metrics import means, play_sums
from mage.types import Completion, MetaEpisode, Request, Task
from tests.thinking_templates import QWEN3, QWEN3_INSTRUCT, QWEN3_THINKING, R1

BOS = "<｜begin▁of▁sentence｜>"


@cache
def chat_of(template: str, thinking: Thinking = "auto") -> Chat:
    chat = byte_chat()
    return Chat(chat.tokenizer, template, {"bos_token": BOS}, chat.end_ids, thinking)


def text_of(chat: Chat, ids: tuple[int, ...]) -> str:
    return chat.tokenizer.decode(list(ids), skip_special_tokens=False)


class LimitedEngine(ScriptedEngine):
    """Ends a reply at the first stop string or at the token limit, as the local engine does."""

    def _answer(self, request: Request) -> tuple[Request, Completion]:
        text, finish = self.reply(request), "eos"
        ends = [text.index(stop) + len(stop) for stop in request.stop if stop in text]
        if ends:
            text, finish = text[: min(ends)], "stop"
        ids = self.encode(text)
        if len(ids) > request.max_tokens:
            text, finish = text.encode()[: request.max_tokens].decode(), "length"
            ids = self.encode(text)
        return request, Completion(ids, (0.0,) * len(ids), text, finish, 0)  # type: ignore[arg-type]


def agent_of(chat: Chat, reply: Callable[[str], str], limit: int = 400) -> Agent:
    """`reply` gets the text that was written after the start of this reply: empty at first."""

    def answer(request: Request) -> str:
        prompt = text_of(chat, request.prompt_ids)
        return reply(prompt)

    engine = LimitedEngine(answer, chat.encode)
    return Agent(engine, chat, SamplingOptions(max_tokens=limit, reflection_tokens=limit))


def script(whole: str) -> Callable[[str], str]:
    """Always the same reply; a reply that was begun gets its rest."""

    def reply(prompt: str) -> str:
        lengths = range(len(whole), 0, -1)
        return next((whole[n:] for n in lengths if prompt.endswith(whole[:n])), whole)

    return reply


# --- Prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "thinking", "opening", "opens"),
    [
        (QWEN3, "auto", "<|im_start|>assistant\n", False),
        (QWEN3, "on", "<|im_start|>assistant\n", False),
        (QWEN3, "off", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (QWEN3_INSTRUCT, "auto", "<|im_start|>assistant\n", False),
        (QWEN3_THINKING, "auto", "<|im_start|>assistant\n<think>\n", True),
        (QWEN3_THINKING, "on", "<|im_start|>assistant\n<think>\n", True),
        (R1, "auto", "<｜Assistant｜><think>\n", True),
        (R1, "on", "<｜Assistant｜><think>\n", True),
    ],
)
def test_the_prompt_ends_as_the_template_says(template, thinking, opening, opens):
    chat = chat_of(template, thinking)
    first = text_of(chat, chat.first("Rules.", "Go."))
    assert first.endswith(opening)
    assert chat.opens_thought is opens
    again = text_of(chat, chat.next("More."))
    assert again.endswith(opening)


@pytest.mark.parametrize(
    ("template", "thinking"),
    [(QWEN3_INSTRUCT, "on"), (QWEN3_INSTRUCT, "off"), (QWEN3_THINKING, "off"), (R1, "off")],
)
def test_a_switch_without_effect_is_an_error(template, thinking):
    with pytest.raises(ValueError, match=rf'agent\.thinking = "{thinking}" has no effect'):
        chat_of(template, thinking)


def test_a_remote_model_has_no_switch_for_thinking():
    words = ["--engines.name=endpoint", "--engines.url=http://h/v1", "--agent.thinking=on"]
    with pytest.raises(ValueError, match=r'agent\.thinking = "on" has no effect with engines'):
        build_components(load_recipe("kuhn_poker", words))


# --- Replies --------------------------------------------------------------------------------------

THOUGHT = "perhaps <action>bet</action>, no </think>\n\nI choose <action>pass</action>"


@pytest.mark.parametrize(
    ("template", "whole"),
    [(QWEN3, f"<think>{THOUGHT}"), (QWEN3_THINKING, THOUGHT), (R1, THOUGHT)],
    ids=["qwen3", "qwen3-2507", "r1"],
)
def test_an_action_inside_a_thought_never_ends_the_reply(template, whole):
    chat = chat_of(template)
    agent = agent_of(chat, script(whole + " and more"))
    (completion,) = run([agent.reply(chat.first("Rules.", "Go."), 1)])
    assert completion.text == whole
    assert agent.read(completion) == "pass"
    assert not agent.is_cut_off(completion)


@pytest.mark.parametrize(
    ("template", "whole"),
    [(QWEN3, "<think>hm " * 99), (QWEN3_THINKING, "hm " * 99), (R1, "<action>bet</action> " * 99)],
    ids=["qwen3", "qwen3-2507", "r1"],
)
def test_a_reply_that_is_cut_off_while_thinking_has_no_action(template, whole):
    chat = chat_of(template)
    agent = agent_of(chat, lambda prompt: whole, limit=60)
    (completion,) = run([agent.reply(chat.first("Rules.", "Go."), 1)])
    assert agent.is_cut_off(completion)
    assert agent.read(completion) is None
    assert style_of(agent).read_note(agent, completion) == ""


def test_a_long_reply_without_a_thought_is_not_cut_off():
    chat = chat_of(QWEN3)
    agent = agent_of(chat, lambda prompt: "so " * 99, limit=60)
    (completion,) = run([agent.reply(chat.first("Rules.", "Go."), 1)])
    assert not agent.is_cut_off(completion)


@pytest.mark.parametrize(
    ("text", "opened", "shown"),
    [
        ("plain", False, "plain"),
        ("<think>a</think>b", False, "b"),
        ("a</think>b", True, "b"),
        ("a</think>b", False, "b"),  # a server that hides the opening tag
        ("a <think>b</think> c <think>d</think> e", False, "a  c  e"),
        ("<think>a<think>b</think>c", False, "c"),
        ("<think>never closed", False, ""),
        ("never closed", True, ""),
        ("said <think>and then", False, "said "),
        ("<think></think>" * 20_000 + "x", False, "x"),
    ],
)
def test_thoughts_are_removed_from_a_text(text, opened, shown):
    assert without_thoughts(text, opened) == shown


def test_an_action_counts_only_after_the_last_thought():
    assert read_action("<action>a</action><think>hm</think>") is None
    assert read_action("<action>a</action>", opened=True) is None
    assert read_action("</think><action>a</action>", opened=True) == "a"
    assert is_thinking("</think> <think>", opened=True)


# --- Play -----------------------------------------------------------------------------------------


def play(template: str, memory: Memory, reply: Callable[[str], str], **options: Any) -> MetaEpisode:
    chat = chat_of(template, options.pop("thinking", "auto"))
    play_setup = PlaySetup(KuhnPoker(), agent_of(chat, reply, **options), memory)
    task = Task("kuhn_poker", 5, 0, "aggressive", "train")
    return play_groups(play_setup, [[task]], seed=1)[0]


def thoughtful(opened: bool) -> Callable[[str], str]:
    """Secret thoughts before every move, note and answer to the memory."""

    def reply(prompt: str) -> str:
        start = "" if opened else "<think>"
        if prompt.endswith("<action>bet</action>"):
            return " SECRET</think>\n\n<action>pass</action>"
        if "Write a short note" in prompt:
            return f"{start}SECRET</think>A note " + "x" * 3000
        if "Describe the note" in prompt:
            return f"{start}Context: SECRET</think>Context: in a game\nTags: cards"
        return f"{start}SECRET <action>bet</action>"

    return reply


@pytest.mark.parametrize("memory", [Notes(keep="both"), AMem(embedding="lexical")], ids=str)
@pytest.mark.parametrize(
    ("template", "opened"), [(QWEN3, False), (QWEN3_THINKING, True), (R1, True)]
)
def test_thoughts_enter_neither_memory_nor_history_nor_anchor(template, opened, memory):
    meta = play(template, memory, thoughtful(opened), limit=3200)
    chat = chat_of(template)
    turns = [turn for episode in meta.episodes for turn in episode.turns]
    assert all(turn.legal for turn in turns)
    assert all("SECRET" in turn.completion.text for turn in turns)
    assert not any("SECRET" in text_of(chat, turn.prompt_ids) for turn in turns)
    assert not any("SECRET" in turn.anchor for turn in turns)
    assert not any("SECRET" in text for text in meta.memories)
    notes = meta.memories[1]
    assert "Note 1: A note xxx" in notes
    assert notes.count("x") < 2000, "a stored reflection has at most 2,000 characters"


@pytest.mark.parametrize("asked", [False, True])
def test_a_sentence_that_the_rules_ask_for_stays_in_the_history(asked):
    """Thoughts between tags and replies without an action are never kept."""
    chat = byte_chat()
    replies = iter(("I begin. <action>1</action>", "no", "<think>x</think><action>9</action>"))

    def reply(prompt: str) -> str:
        return next(replies, "<action>0</action>")

    agent = replace(agent_of(chat, reply), think_first=asked)
    setup = PlaySetup(TicTacToe(max_turns=5), agent, Notes(keep="none"), episodes=1)
    task = Task("tic_tac_toe", 5, 0, "pattern-0", "train")
    turns = play_groups(setup, [[task]], seed=1)[0].episodes[0].turns
    assert ("one short sentence" in text_of(chat, turns[0].prompt_ids)) == asked
    last = text_of(chat, turns[-1].prompt_ids)
    assert ("I begin. <action>1</action><|end|>" in last) == asked
    assert "<action>?</action>" in last
    assert "<think>" not in last


def test_a_prompt_that_opens_a_thought_closes_it_in_the_history():
    """A board game with several turns: every past reply is an empty thought and the action."""
    chat = chat_of(QWEN3_THINKING)
    cells = iter("123456789" * 9)
    agent = agent_of(chat, lambda prompt: f"hm</think>\n\n<action>{next(cells)}</action>")
    play_setup = PlaySetup(TicTacToe(), agent, Notes(keep="none"), episodes=1)
    task = Task("tic_tac_toe", 3, 0, "random", "train")
    (meta,) = play_groups(play_setup, [[task]], seed=1)
    last = text_of(chat, meta.episodes[0].turns[-1].prompt_ids)
    replies = last.split("<|im_start|>assistant\n")[1:]
    assert len(replies) > 2
    assert replies[0].startswith("<think>\n\n</think>\n\n<action>1</action><|im_end|>")
    assert replies[-1] == "<think>\n"
    assert "hm" not in last
    prompts = [turn.prompt_ids for turn in meta.episodes[0].turns]
    assert all(b[: len(a)] == a for a, b in itertools.pairwise(prompts))


def test_a_cut_off_reply_is_counted_apart_from_illegal_moves():
    meta = play(QWEN3, Notes(keep="none"), lambda prompt: "<think>hm " * 200, limit=100)
    turns = [turn for episode in meta.episodes for turn in episode.turns]
    assert all(turn.cut_off and not turn.legal and not turn.illegal for turn in turns)
    row = task_row(meta)
    assert row.cut_off == row.replies
    assert row.illegal == (0, 0, 0)
    figures = means([play_sums([meta])])
    assert (figures["cut_off_rate"], figures["illegal_rate"]) == (1.0, 0.0)


def test_an_unreadable_reply_is_an_illegal_move():
    meta = play(QWEN3, Notes(keep="none"), lambda prompt: "<think>hm</think> I do not know")
    row = task_row(meta)
    assert row.illegal == row.replies
    assert row.cut_off == (0, 0, 0)


def test_demonstrations_close_the_thought_that_a_prompt_opens():
    chat = chat_of(R1)
    play_setup = PlaySetup(KuhnPoker(), agent_of(chat, script("")), Notes(keep="both"))
    task = Task("kuhn_poker", 5, 0, "aggressive", "train")
    shown = write_demonstrations(play_setup, [task], 1)
    moves = [one.turn for one in shown if one.turn.kind == "play"]
    assert moves
    assert all(turn.completion.text.startswith("\n</think>\n\n<action>") for turn in moves)
    assert all(turn.legal for turn in moves)
