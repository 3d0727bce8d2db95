"""History windows and the context limit: folded turns, overflow, and the check before a run."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from corridor import Corridor
from toys import byte_chat, scripted_agent
from typer.testing import CliRunner

from mage.agent.chat import Chat
from mage.agent.history import History, PastTurn, Prompt, folded_line
from mage.cli.main import app
from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.engines.base import Engine
from mage.evaluation.rows import task_row
from mage.memory.notes import Notes
from mage.models.base import SHIPPED, base_folder
from mage.play import PlaySetup, play_groups
from mage.report.plain import training_problems
from mage.training.context import check_context, check_overflow, measure_prompts
from mage.training.metrics import means, play_sums
from mage.types import Completion, MetaEpisode, Request, Task

CHAT = byte_chat()


def text_of(ids: tuple[int, ...]) -> str:
    return CHAT.tokenizer.decode(list(ids), skip_special_tokens=False)


def reply(action: str) -> tuple[int, ...]:
    return CHAT.encode(f"<action>{action}</action>")


def filled(window: int | None = None, room: int | None = None, turns: int = 4) -> History:
    """A history with the turns o1/a1, o2/a2, ..; the last prompt is asked with o5."""
    history = History(CHAT, window, room)
    history.begin(CHAT.first("R", "o1"))
    for number in range(1, turns + 1):
        if number > 1:
            history.next(f"o{number}")
        history.add(PastTurn(f"o{number}", reply(f"a{number}"), f"a{number}"))
    return history


def shown(history: History, message: str = "o5") -> str:
    return text_of(history.next(message).ids)


FIRST = "<|system|>R<|end|><|user|>o1<|end|><|assistant|><action>a1</action><|end|>"
FOURTH = "o4<|end|><|assistant|><action>a4</action><|end|><|user|>o5<|end|><|assistant|>"


# --- Windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 3, 4, 100])
def test_a_prompt_within_the_window_is_append_only(window):
    history = filled(window)
    prompt = history.next("o5")
    assert prompt.folded == 0
    assert text_of(prompt.ids).count("<action>") == 4
    assert text_of(prompt.ids).startswith(FIRST + "<|user|>o2<|end|>")


def test_turns_outside_the_window_become_one_line_and_the_first_turn_stays():
    # Worked by hand: window 1 shows turn 4 in full, turn 1 because of the task, 2 and 3 by name.
    line = "(Turns 2 to 3 are not shown. Actions: a2; a3)"
    assert shown(filled(1)) == f"{FIRST}<|user|>{line}\n{FOURTH}"
    line = "(Turn 2 is not shown. Actions: a2)"
    third = "o3<|end|><|assistant|><action>a3</action><|end|><|user|>"
    assert shown(filled(2)) == f"{FIRST}<|user|>{line}\n{third}{FOURTH}"
    long = f"(Turns 2 to 3 are not shown. Actions: {'x' * 60}..; ?)"
    assert folded_line(["x" * 500, None]) == long


def test_turns_are_folded_in_blocks_and_prompts_between_are_append_only():
    history, prompts = History(CHAT, window=2, fold=3), list[Prompt]()
    history.begin(CHAT.first("R", "o1"))
    for number in range(1, 12):
        if number > 1:
            prompts.append(history.next(f"o{number}"))
        history.add(PastTurn(f"o{number}", reply(f"a{number}"), f"a{number}"))
    # Worked by hand: the prompt of turn n has n - 1 past turns, n - 4 of them beyond the window.
    assert [prompt.folded for prompt in prompts] == [0, 0, 0, 0, 0, 3, 3, 3, 6, 6]
    for before, after in pairwise(prompts):
        extended = after.ids[: len(before.ids)] == before.ids
        assert extended == (after.folded == before.folded)
    full = [text_of(prompt.ids).count("<|assistant|><action>") - 1 for prompt in prompts]
    assert full == [0, 1, 2, 3, 4, 2, 3, 4, 2, 3], "two to four besides the first turn"


def test_a_full_context_folds_in_blocks_too():
    whole = filled(turns=9).next("o10")
    history = replace(filled(turns=9), room=len(whole.ids) - 1, fold=4)
    prompt = history.next("o10")
    assert (prompt.folded, prompt.fits) == (4, True)
    all_but_the_first = history.fold_more(replace(prompt, folded=7), "o10")
    assert all_but_the_first is not None
    assert all_but_the_first.folded == 8
    assert history.fold_more(all_but_the_first, "o10") is None


def play(agent: Any, environment: Any = None, episodes: int = 1) -> MetaEpisode:
    environment = environment or Corridor(max_turns=8)
    play_setup = PlaySetup(environment, agent, Notes(keep="none"), episodes)
    return play_groups(play_setup, [[Task(environment.name, 1, 0, "", "train")]], seed=1)[0]


WAITS = scripted_agent(lambda prompt: "<action>wait</action>")


def test_play_keeps_the_window_and_counts_folded_turns():
    whole = play(WAITS).episodes[0].turns
    assert len(whole) > 4
    meta = play(replace(WAITS, window=2))
    turns = meta.episodes[0].turns
    assert [turn.folded for turn in turns] == [max(0, n - 3) for n in range(len(turns))]
    for short, long in zip(turns[:4], whole[:4], strict=True):
        assert short.prompt_ids == long.prompt_ids, "append-only until the window is exceeded"
    last = text_of(turns[-1].prompt_ids)
    assert last.count("<|assistant|><action>") == 3, "the first turn and the latest two"
    assert means([play_sums([meta])])["folded_rate"] == (len(turns) - 4) / len(turns)
    assert task_row(meta).folded == (len(turns) - 4,)


def test_a_window_of_zero_shows_the_present_observation_only():
    turns = play(replace(WAITS, window=0)).episodes[0].turns
    assert len(turns) > 4
    for turn in turns:
        text = text_of(turn.prompt_ids)
        assert text.count("<|user|>") == 1
        assert turn.observation in text
        assert turn.folded == 0


def test_the_paper_recipes_have_the_published_windows():
    for name, window in {"alfworld": 15, "webshop": 5, "sokoban": 7}.items():
        assert load_recipe(f"paper_{name}").agent.window == window


# --- Overflow during play -------------------------------------------------------------------------


def test_turns_are_folded_until_the_prompt_has_room():
    whole = filled().next("o5")
    for room in range(len(whole.ids) + 5, 60, -1):
        prompt = filled(room=room).next("o5")
        assert prompt.fits == (len(prompt.ids) <= room)
        assert prompt.fits or prompt.folded == 3, "folded as far as possible"
        assert (prompt.folded == 0) == (room >= len(whole.ids))
    smallest = filled(room=1).next("o5")
    assert text_of(smallest.ids) == (
        f"{FIRST}<|user|>(Turns 2 to 4 are not shown. Actions: a2; a3; a4)\no5<|end|><|assistant|>"
    )
    assert not smallest.fits


class SmallContext(Engine):
    """Answers `wait`; a prompt of `limit` tokens or more is refused, as by the local engine."""

    def __init__(self, limit: int, known: bool) -> None:
        self.limit, self.context = limit, limit if known else None
        self.queue: list[Request] = []
        self.asked: list[int] = []

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def step(self) -> list[tuple[Request, Completion]]:
        queue, self.queue = self.queue, []
        return [(request, self._complete(request)) for request in queue]

    def _complete(self, request: Request) -> Completion:
        self.asked.append(len(request.prompt_ids))
        if len(request.prompt_ids) >= self.limit:
            return Completion((), (), "", "overflow", 0)
        ids = reply("wait")
        return Completion(ids, (0.0,) * len(ids), "<action>wait</action>", "stop", 0)


@pytest.mark.parametrize("known", [True, False], ids=["limit known", "limit of a server"])
def test_a_full_context_folds_turns_and_a_prompt_that_cannot_fit_costs_nothing(known):
    fifth = len(play(WAITS).episodes[0].turns[4].prompt_ids)
    engine = SmallContext(fifth + (WAITS.sampling.max_tokens if known else 0) + 1, known)
    turns = play(replace(WAITS, engine=engine)).episodes[0].turns
    assert all(turn.legal and not turn.overflow for turn in turns), "no reply is lost"
    assert [turn.folded > 0 for turn in turns[:5]] == [False] * 5
    assert turns[-1].folded > 0
    meta = play(replace(WAITS, engine=SmallContext(20, known)))
    turns = meta.episodes[0].turns
    assert all(turn.overflow and not turn.illegal and turn.penalty == 0 for turn in turns)
    figures = means([play_sums([meta])])
    assert (figures["overflow_rate"], figures["illegal_rate"]) == (1.0, 0.0)
    assert task_row(meta).overflow == (len(turns),)


class CutShort(SmallContext):
    """Writes an unfinished action, as where the context has no room for a reply of full length."""

    def _complete(self, request: Request) -> Completion:
        ids = reply("wait")[:2]
        return Completion(ids, (0.0,) * len(ids), "<act", "length", 0)


def test_a_reply_without_room_for_all_its_tokens_costs_nothing():
    for context, is_illegal in ((20, False), (10_000, True)):
        for turn in play(replace(WAITS, engine=CutShort(context, known=True))).episodes[0].turns:
            assert (turn.overflow, turn.illegal) == (not is_illegal, is_illegal)
            assert turn.penalty == (-0.5 if is_illegal else 0.0)


def test_a_limit_of_replies_that_cuts_moves_of_one_world_is_a_warning_at_load():
    """In the tokens of this model <action>scissors</action> has 8, moves of other worlds fewer."""
    chat = Chat.load(SHIPPED / "embedded")
    assert check_context(load_recipe("mix_small"), chat) == ()
    (told,) = check_context(load_recipe("mix_small", ["--agent.max_tokens=6"]), chat)
    assert told.startswith("agent.max_tokens = 6 is too small: the longest answer of random play ")
    assert "takes 8 in rock_paper_scissors, and" in told


def test_training_stops_if_more_than_five_percent_overflow():
    recipe = load_recipe("kuhn_demo")
    for share in (0.0, 0.05):
        check_overflow({"update": 3, "overflow_rate": share}, recipe)
    with pytest.raises(ConfigError, match=r"after update 3: 5\.1 % .* engines\.context = 1024"):
        check_overflow({"update": 3, "overflow_rate": 0.051}, recipe)


@pytest.mark.e2e
def test_a_training_with_a_small_context_stops_with_one_message(tmp_path):
    """The memory grows from episode to episode: the first prompts fit, later ones do not."""
    words = ["--engines.context=190", "--run.updates=2", "--run.workers=1", f"--runs={tmp_path}"]
    words += ["--play.groups=1", "--play.members=2", "--evaluate.size=1", "--evaluate.final_size=1"]
    done = CliRunner().invoke(app, ["train", "kuhn_demo", *words, "--run.name=one"])
    assert done.exit_code == 2, done.output
    assert "older turns will be folded" in done.stderr
    assert "training stopped after update 1" in done.stderr
    assert "Start a run with a larger engines.context" in done.stderr
    assert "Traceback" not in done.stderr
    (line,) = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["overflow_rate"] > 0.05


# --- Before a run ---------------------------------------------------------------------------------


def test_the_longest_prompt_is_found_by_random_play():
    """Kuhn poker with the embedded model: at least rules and card, at most all three games."""
    recipe, chat = load_recipe("kuhn_demo"), Chat.load(SHIPPED / "embedded")
    few = measure_prompts(recipe, chat)
    more = measure_prompts(load_recipe("kuhn_demo", ["--evaluate.episodes=6"]), chat)
    assert few.shortest == more.shortest
    assert few.shortest < few.longest < more.longest


def test_a_window_makes_long_episodes_fit():
    chat = Chat.load(SHIPPED / "embedded-worlds")
    words = ["--engines.context=500", "--environments.max_turns=20", "--play.episodes=1"]
    (warning,) = check_context(load_recipe("alfworld", words), chat)
    assert "older turns will be folded into one line" in warning
    assert check_context(load_recipe("alfworld", [*words, "--agent.window=1"]), chat) == ()


@pytest.mark.parametrize(
    "name",
    ["demo", "kuhn_demo", "kuhn_poker", "kuhn_reflections", "tic_tac_toe", "sokoban", "alfworld"],
)
def test_the_prompts_of_a_shipped_recipe_fit_its_context(name):
    recipe = load_recipe(name)
    assert check_context(recipe, Chat.load(base_folder(recipe))) == ()


@pytest.mark.e2e
def test_an_evaluation_shows_folded_prompts_and_its_warning():
    words = ["evaluate", "alfworld", "--size=2", "--engines.context=420", "--play.episodes=1"]
    words += ["--environments.max_turns=20", "--memory=none", "--evaluate.splits=['test']"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "older turns will be folded into one line" in done.stdout
    assert "prompts with folded turns, by episode: " in done.stdout


def test_a_rare_problem_of_replies_is_not_shown_as_zero():
    shown = training_problems([{"overflow_rate": 0.0}, {"overflow_rate": 0.0004}])
    assert [line.rpartition(": ")[2] for line in shown] == ["below 0.1 %"]
    assert training_problems([{"overflow_rate": 0.0}]) == []
