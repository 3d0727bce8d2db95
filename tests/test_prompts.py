"""Prompts in the published style: content of every world, memory, reflection (docs/prompts.md)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from corridor import Corridor
from toys import byte_chat, scripted_agent
from typer.testing import CliRunner

from mage.agent.agent import Agent
from mage.agent.styles import style_of
from mage.cli.main import app
from mage.environments.alfworld import Alfworld
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.sokoban.world import Sokoban
from mage.environments.tic_tac_toe import TicTacToe
from mage.environments.webshop.environment import WebShop
from mage.memory.amem import AMem
from mage.memory.base import Memory
from mage.memory.notes import Notes
from mage.play import PlaySetup, play_groups
from mage.types import MetaEpisode, Split, Task

REMARK = "I lost.\n<remark>Take the middle.\nThen a corner.</remark>"
WORLDS: tuple[Environment, ...] = (
    TicTacToe(restart="same"),
    KuhnPoker(restart="same"),
    Sokoban(),
    Alfworld(receptacles=3),
    WebShop(products=30, test_goals=5, dev_goals=5, observation="text"),
)
WINDOWS = {"alfworld": 15, "webshop": 5}
NAMES = [world.name for world in WORLDS]


class Played:
    """A scripted meta-episode: its record, and the prompts of moves and of reflections."""

    def __init__(
        self,
        world: Environment,
        actions: Sequence[str] = ("?",),
        remark: str = REMARK,
        memory: Memory | None = None,
        *,
        opponent: str = "random",
        seat: int = 0,
        episodes: int = 2,
        split: Split = "train",
    ) -> None:
        script, seen = iter(list(actions) * 1000), list[str]()
        reply = lambda prompt: (  # noqa: E731
            remark if "<remark>" in prompt else f"Hm. <action>{next(script)}</action>"
        )
        agent = replace(scripted_agent(reply, seen=seen), prompts="published")
        agent = replace(agent, window=WINDOWS.get(world.name, 7))
        memory = memory or Notes(keep="reflections")
        setup = PlaySetup(world, agent, memory, episodes=episodes)
        task = Task(world.name, 3, seat, opponent if world.multi_agent else "", split)
        self.agent: Agent = agent
        self.meta: MetaEpisode
        (self.meta,) = play_groups(setup, [[task]], seed=1)
        self.all = seen
        self.moves = [prompt for prompt in seen if "between <remark>" not in prompt]
        self.reflections = [prompt for prompt in seen if "between <remark>" in prompt]


def played(name: str) -> Played:
    return Played(WORLDS[NAMES.index(name)])


@pytest.mark.parametrize("name", NAMES)
def test_every_turn_is_one_user_message_without_a_system_message(name):
    found = played(name)
    for prompt in found.all:
        assert prompt.startswith("<|user|>")
        assert prompt.endswith("<|end|><|assistant|>")
        assert prompt.count("<|user|>") == 1
        assert "<|system|>" not in prompt
    turns = found.meta.episodes[0].turns
    assert len(turns) > 1
    for before, after in pairwise(turns):
        known = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(known)] != known


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_names_the_trial_the_memory_and_no_number_of_trials(name):
    found = played(name)
    count = len(found.meta.episodes[0].turns)
    first, second = found.moves[:count], found.moves[count:]
    assert not any("trial" in prompt.lower() for prompt in first)
    line = "Trial 1 was not completed.\nYour reflection on it:\nTake the middle.\nThen a corner."
    assert all(line in prompt and "You are now in trial 2." in prompt for prompt in second)
    assert not any(" of 2" in prompt for prompt in found.all)
    assert not any("how it plays" in prompt for prompt in found.all), "no hint to explore"
    assert not any("what works and use it" in prompt for prompt in found.all)


@pytest.mark.parametrize("name", NAMES)
def test_a_reflection_sees_the_trial_and_asks_for_mistakes_and_a_plan(name):
    found = played(name)
    (request,) = found.reflections
    assert "<action>" not in request, "the answer format of moves belongs to moves"
    for text in ("The task was not completed.", "your mistakes", "concise plan", "</remark>"):
        assert text in request
    view = WORLDS[NAMES.index(name)].wording().reviewed
    turns = len(found.meta.episodes[0].turns)
    assert request.count("\nTurn ") == min(turns, view or turns)
    assert "? (not valid)" in request


@pytest.mark.parametrize("name", NAMES)
def test_a_reflection_without_its_tag_is_an_invalid_action(name):
    found = Played(WORLDS[NAMES.index(name)], remark="no tag: <remark>open")
    reflection = found.meta.episodes[1].reflection
    assert reflection is not None
    assert (reflection.legal, reflection.illegal, reflection.penalty) == (False, True, -0.5)
    assert "Your reflection on it:\n\n" in found.moves[-1]
    assert style_of(found.agent).read_note(found.agent, reflection.completion) is None
    good = played(name).meta.episodes[1].reflection
    assert good is not None
    assert good.legal
    assert not good.penalty


def test_a_won_trial_is_told_as_completed():
    found = Played(KuhnPoker(restart="same"), ("BET",), opponent="aggressive", episodes=2)
    assert found.meta.episodes[0].outcome == "won"
    assert "The task was completed." in found.reflections[0]
    assert "Trial 1 was completed." in found.moves[-1]


def test_tic_tac_toe_has_coordinates_and_the_agent_is_always_x():
    found = Played(TicTacToe(restart="same"), ("(1, 2)", "(9,9)"), opponent="pattern-0", seat=1)
    assert "At the start:\n. . .\n. O .\n. . .\n" in found.moves[0]
    assert "Turn 1: (1,2)\nO X .\n. O .\n. . ." in found.moves[1]
    assert "Turn 2: (9,9) (not valid)" in found.moves[2]
    assert "You are X" in found.moves[0]
    assert "threats" in found.moves[0]
    turn = found.meta.episodes[0].turns[0]
    assert turn.action == "(1,2)"
    assert "(1,1)" in turn.legal_moves
    assert found.meta.episodes[0].moves[1].action == "2", "the state keeps its own spelling"


def test_boards_older_than_two_turns_are_hidden_and_a_reflection_sees_seven():
    for name in ("tic_tac_toe", "kuhn_poker", "sokoban"):
        found = played(name)
        last = found.moves[len(found.meta.episodes[0].turns) - 1]
        lines = last.splitlines()
        shown = [number for number, line in enumerate(lines) if line.startswith("Turn ")]
        hidden = [n for n in shown if lines[n + 1].startswith("Turn ")]
        assert len(shown) - len(hidden) == 2, name
        assert not any("Turn " in line for line in _after_turns(found.reflections[0])), name


def _after_turns(text: str) -> list[str]:
    lines = text.splitlines()
    return [after for line, after in pairwise(lines) if line.startswith("Turn ")]


def test_kuhn_poker_has_pass_and_bet_and_names_chips_in_the_long_run():
    found = Played(KuhnPoker(restart="same"), ("bet", "PASS", "BET"), opponent="aggressive")
    assert "in the long run" in found.moves[0]
    assert "You are player 0" in found.moves[0]
    assert "<action>PASS</action> or <action>BET</action>" in found.moves[0]
    assert [turn.legal for turn in found.meta.episodes[0].turns] == [False, True, True]
    assert "Actions: player 0 PASS, player 1 BET." in found.moves[2]


def test_the_published_reflection_on_kuhn_poker_shows_both_cards_in_training_only():
    for split in ("train", "test"):
        found = Played(KuhnPoker(restart="same"), ("PASS",), split=split)  # type: ignore[arg-type]
        assert ("player 1 has" in found.reflections[0]) == (split == "train")
        assert not any("player 1 has" in prompt for prompt in found.moves)


def test_sokoban_has_row_numbers_the_tick_and_three_moves():
    world = Sokoban()
    state = world.start(world.episode_seed(3, 0))
    expert = state.expert()
    assert expert is not None
    found = Played(world, (expert.replace(" ", ","),))
    assert "\n0: # # # # # #\n1: #" in found.moves[0]
    assert "THREE actions" in found.moves[0]
    assert "one to 3" not in found.moves[0]
    assert "√ box on a target" in found.moves[0]
    assert "stuck" in found.moves[0]
    assert f"Turn 1: {expert.replace(' ', ', ')}" in found.moves[1]
    state.boxes = state.room.targets
    assert "√" in world.wording().view(state, 0)
    assert "*" not in world.wording().view(state, 0)


def test_alfworld_lists_no_help_and_gives_no_hints():
    found = played("alfworld")
    assert "'look'" in found.moves[0]
    assert "'help'" not in found.moves[0]
    assert "help" not in found.meta.episodes[0].turns[0].legal_moves
    assert "sinkbasin" not in found.moves[0]
    assert "Nothing happens." in found.moves[1]
    assert "Your task is to:" in found.reflections[0]


def test_webshop_offers_a_search_on_the_search_page_only_and_cuts_old_pages():
    search = "search[made for every day]"  # many results
    found = Played(WORLDS[-1], (search,))
    assert "'search[<your words>]'" in found.moves[0]
    assert "click[" not in found.moves[0]
    assert "search[<your" not in found.moves[1]
    assert "'click[next >]'" in found.moves[1]
    assert found.meta.episodes[0].turns[1].legal, "it still works on every page"
    pages = [line for line in found.moves[6].splitlines() if line.startswith("'Back to Search'")]
    assert len(pages) == 5, "the window of WebShop"
    assert all("more)" in page for page in pages[:-1])
    assert "more)" not in pages[-1]
    assert all(page.count(" [SEP] ") == 14 for page in pages[:-1])
    assert found.reflections[0].count("\nTurn ") == 12


def test_the_text_anchor_of_webshop_does_not_say_which_options_are_chosen():
    world = WebShop(products=30, test_goals=5, dev_goals=5, observation="text", anchor="text")
    state = world.start(world.episode_seed(3, 0))
    while "click[buy now]" not in state.legal():
        state.apply(state.expert() or "")
    before, product = state.anchor(0), next(iter(state.catalogue.find(state.asin).options.values()))
    state.apply(f"click[{product[0]}]")
    assert "You have clicked" in state.observe(0)
    assert state.anchor(0) == before


def test_an_environment_without_published_words_uses_its_own_in_the_published_layout():
    found = Played(Corridor(), ("right",), episodes=2)
    world = Corridor()
    assert world.rules() in found.moves[0]
    assert "At the start:" in found.moves[0]
    assert world.rules() in found.reflections[0]
    assert "<action>" not in found.reflections[0]


def test_the_questions_of_a_memory_have_no_answer_format_of_moves():
    found = Played(KuhnPoker(restart="same"), ("PASS",), memory=AMem(), episodes=3)
    asked = [prompt for prompt in found.all if "Keywords:" in prompt]
    assert len(asked) == 2
    assert all("<action>" not in prompt and "Kuhn poker" in prompt for prompt in asked)


def test_past_trials_are_shown_whole_with_the_memory_of_histories():
    found = Played(TicTacToe(restart="same"), ("(1,1)",), memory=Notes(keep="both"))
    last = found.moves[-1]
    assert "In trial 1 you saw and did this:\nAt the start:" in last
    assert "Trial 1 was not completed.\nYour reflection on it:\nTake the middle." in last


def test_a_prompt_that_does_not_fit_shows_fewer_turns():
    world = WORLDS[NAMES.index("alfworld")]
    found = Played(world)
    sizes = [len(turn.prompt_ids) for turn in found.meta.episodes[0].turns]
    agent = found.agent
    agent.engine.context = sizes[3] + agent.sampling.max_tokens
    setup = PlaySetup(world, agent, Notes(keep="none"), episodes=1)
    (meta,) = play_groups(setup, [[Task("alfworld", 3, 0, "", "train")]], seed=1)
    assert max(len(turn.prompt_ids) for turn in meta.episodes[0].turns) <= sizes[3]
    assert [turn.folded > 0 for turn in meta.episodes[0].turns] == [False] * 4 + [True] * 6


def test_a_single_message_is_the_template_around_it():
    chat = byte_chat()
    text = chat.tokenizer.decode(list(chat.alone("Go.")), skip_special_tokens=False)
    assert text == "<|user|>Go.<|end|><|assistant|>"


def show(*words: str) -> str:
    found = CliRunner().invoke(app, ["show", *words])
    assert found.exit_code == 0, found.output
    return found.output


def test_show_prints_the_prompts_of_a_recipe_in_both_styles():
    own = json.loads(show("paper_kuhn_poker", "--prompts", "--json"))
    titles = [one["title"] for one in own]
    assert titles[:2] == ["episode 1, turn 1", "reflection after episode 1"]
    assert titles[2].startswith("episode 3, turn ")
    assert [[role for role, _ in one["messages"]] for one in own] == [["user"]] * 3
    assert "Trial 2 was" in own[2]["messages"][0][1]
    chat = show("paper_kuhn_poker+ours", "--prompts")
    assert "[system]" in chat
    assert "Game 3 of 3" in chat
    assert chat.count("You play Kuhn poker") == 1, "the rules are printed once"
    assert "(as in episode 1, turn 1)" in chat


def test_show_prints_the_prompt_of_a_single_turn_once():
    found = show("roshambo", "--prompts", "--environments.throws=1", "--json")
    assert [one["title"] for one in json.loads(found)] == ["episode 1, turn 1"]


def test_show_prints_prompts_with_the_chat_template_of_the_model():
    text = show("paper_tic_tac_toe", "--prompts", "--template", "--model.path=embedded")
    assert text.count("<|user|>") == text.count("<|assistant|>") == 3
    refused = CliRunner().invoke(app, ["show", "demo", "--template"])
    assert refused.exit_code == 2
    assert "--template belongs to --prompts" in refused.output
