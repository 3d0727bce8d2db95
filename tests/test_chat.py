"""A chat in pieces equals the rendered template, for several model families."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mage.agent.agent import episode_text, system_text
from mage.agent.chat import Chat
from mage.environments.alfworld import Alfworld
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.rock_paper_scissors import RockPaperScissors
from mage.models.base import SHIPPED
from tests.toys import byte_chat, scripted_agent


def test_the_pieces_of_a_chat_equal_the_rendered_template():
    chat = byte_chat()
    ids = chat.first("rules", "hello") + chat.encode("<action>pass</action>") + chat.next("more")
    assert chat.tokenizer.decode(list(ids), skip_special_tokens=False) == (
        "<|system|>rules<|end|><|user|>hello<|end|><|assistant|><action>pass</action><|end|>"
        "<|user|>more<|end|><|assistant|>"
    )


def test_the_embedded_model_renders_as_in_transformers():
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(SHIPPED / "embedded")
    ours = Chat.load(SHIPPED / "embedded")
    contents = ("You play Kuhn poker.", "Your card: K.", "<action>bet</action>", "Moves: you bet.")
    messages = [
        {"role": role, "content": text}
        for role, text in zip(("system", "user", "assistant", "user"), contents, strict=True)
    ]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    found = ours.first(*contents[:2]) + ours.encode(contents[2]) + ours.next(contents[3])
    assert list(found) == list(expected)


def test_decoding_omits_the_end_token():
    chat = byte_chat()
    assert chat.decode((*chat.encode("done."), *chat.end_ids)) == "done."


def folder_with(tmp_path: Path, **files: str) -> Path:
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    for name in (*names, "chat_template.jinja"):
        source = SHIPPED / "embedded" / name
        text = files.get(name.split(".")[0], source.read_text())
        if text:
            (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer", "", r"has no tokenizer\.json"),
        ("chat_template", "{{ messages[-1]['content'] }}", "does not show system, user and assis"),
        ("chat_template", "{% for m in messages %}{{ m.content", "cannot render"),
    ],
)
def test_a_folder_without_a_tokenizer_or_with_a_wrong_template_is_refused(
    name, content, message, tmp_path
):
    with pytest.raises(ValueError, match=message):
        Chat.load(folder_with(tmp_path, **{name: content}))


def test_a_template_in_the_tokenizer_config_is_found(tmp_path):
    config = json.loads((SHIPPED / "embedded" / "tokenizer_config.json").read_text())
    config["chat_template"] = (SHIPPED / "embedded" / "chat_template.jinja").read_text()
    folder = folder_with(tmp_path, chat_template="", tokenizer_config=json.dumps(config))
    assert Chat.load(folder).first("a", "b") == Chat.load(SHIPPED / "embedded").first("a", "b")


_SHOWN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (_LOOP + _SHOWN, "needs more than"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ 'a' * 2000000 }}" + _SHOWN, "more than 1,048,576 characters"),
        ("{% for a in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "more than 1,048,576"),
        ("x" * 2_000_000, "has 2,000,000 characters"),
    ],
    ids=["loop", "recursion", "large", "many", "long"],
)
def test_a_template_without_end_or_with_a_huge_output_is_stopped(template, fault, monkeypatch):
    if "needs" in fault:  # all others end within the limit on any machine
        monkeypatch.setattr("mage.agent.chat_template.SECONDS", 0.1)
    with pytest.raises(ValueError, match=fault):
        Chat(byte_chat().tokenizer, template, {}, (0,))


def test_a_template_may_use_filters():
    plain = Chat(byte_chat().tokenizer, _SHOWN, {}, (0,))
    filtered = Chat(byte_chat().tokenizer, _SHOWN.replace("m.role", "m.role|trim"), {}, (0,))
    assert filtered.first("rules", "go") == plain.first("rules", "go")


def test_the_record_of_a_poker_hand_has_four_tokens_and_its_evidence_is_one_of_them():
    """By hand: number of the game, own card, moves with the opponent's card, result."""
    chat = Chat.load(SHIPPED / "embedded-kuhn")
    shown = "Moves: you pass, opponent bet, you bet. Opponent's card: K. "
    memory = f"Game 1: Your card: Q. {shown}You lost 2 chips."
    assert len(chat.encode(shown)) == 1
    assert len(chat.encode(f"{memory}\n")) == 4
    game = KuhnPoker()
    text = episode_text(game, 1, memory, 2, 3, "Your card: J. Moves: opponent bet.")
    # system message 4, user 1, seat 1, record 4, number of the game 1, observation 1, assistant 1
    assert len(chat.first(system_text(game), text)) == 13
    assert chat.decode(chat.encode(text)) == text


def test_a_turn_of_the_demo_has_eight_tokens_and_other_texts_keep_their_characters():
    """By hand: end, user, throws, number of the throw, assistant; then tag, throw, tag."""
    chat = Chat.load(SHIPPED / "embedded-rps")
    assert len(chat.next("scissors-paper. Throw 2.")) == 5
    assert len(chat.encode("<action>rock</action>")) == 3
    memory = "Game 1: rock-paper, scissors-rock, paper-paper. Score -2.\n"
    game = RockPaperScissors()
    text = episode_text(game, 0, memory.strip(), 2, 3, "Throw 1.")
    # system message 4, user 1, throws of a game 1, record 7, opening 1, assistant 1
    assert len(chat.first(system_text(game), text)) == 15
    for other in (text, episode_text(RockPaperScissors(throws=7), 0, memory, 5, 9, "Throw 1.")):
        assert chat.decode(chat.encode(other)) == other


def test_the_prompt_can_ask_for_a_sentence_before_the_action():
    short, long = (system_text(KuhnPoker(), think) for think in (False, True))
    sentence = "Each answer is one short sentence about what the opponent will do next"
    assert sentence in long
    assert sentence not in short
    assert long.endswith("<action>pass</action>")
    assert short.endswith("<action>pass</action>")


@pytest.mark.parametrize("game", [KuhnPoker(), Alfworld(receptacles=4, objects=4)])
def test_the_prompt_can_show_the_form_of_an_answer_without_an_example(game):
    shown, form = (system_text(game, example=example) for example in (True, False))
    assert shown.endswith(f", like this: <action>{game.example_action()}</action>")
    assert form.endswith(", written between <action> and </action>.")
    assert shown.rpartition(", ")[0] == form.rpartition(", ")[0]
    agent = replace(scripted_agent(lambda prompt: ""), example=False)
    assert form in agent.chat.decode(agent.begin(game, "Go."))
