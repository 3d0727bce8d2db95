"""The warm-up: scripted play works in any environment, teaches the format and keeps the entropy."""

import itertools
import json
import math
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
import torch
from corridor import Corridor
from safetensors.torch import load_file
from toys import byte_chat, scripted_agent
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from mage.agent.agent import Agent, SamplingOptions, read_action
from mage.agent.chat import Chat
from mage.cli.main import app
from mage.config.loading import load_recipe
from mage.config.recipe import build_recipe
from mage.config.sections import LearnOptions
from mage.config.warmup_options import WarmupOptions
from mage.engines.local import LocalEngine
from mage.environments.base import Environment
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.openspiel import OpenSpiel
from mage.environments.tic_tac_toe import TicTacToe
from mage.learn.imitate import skill, warmup
from mage.learn.imitate.demonstrations import Demonstration
from mage.learn.imitate.scripted import facts_of, factual_note, write_demonstrations
from mage.learn.imitate.supervised import action_entropy, imitate
from mage.learn.imitate.warmup import Warmup, lr_at, warm_up
from mage.learn.trainable import AllWeights
from mage.memory.notes import Notes
from mage.models.base import SHIPPED
from mage.models.loading import load_model
from mage.play import RAN_OUT, PlaySetup
from mage.ranks.stop import Stopped, StopSignals
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from mage.types import Task, Turn

BYTES = byte_chat()
WORLDS = [TicTacToe(), KuhnPoker(), OpenSpiel(game="nim(pile_sizes=2;3)"), Corridor(length=3)]


def tasks(environment: Environment, count: int) -> list[Task]:
    opponent = "random" if environment.multi_agent else ""
    return [
        Task(environment.name, seed, seed % environment.seats, opponent, "train")
        for seed in range(count)
    ]


def demonstrations(
    environment: Environment, count: int = 20, seed: int = 0, **options: int
) -> list[Demonstration]:
    agent = scripted_agent(lambda prompt: pytest.fail("the model is not asked in scripted play"))
    setup = PlaySetup(environment, agent, Notes(keep="both"), **options)
    return write_demonstrations(setup, tasks(environment, count), seed)


def of_kind(found: list[Demonstration], kind: str) -> list[Turn]:
    return [one.turn for one in found if one.turn.kind == kind]


@pytest.mark.parametrize("environment", WORLDS, ids=lambda world: world.name)
def test_scripted_play_works_in_every_environment_and_makes_legal_moves_only(environment):
    found = demonstrations(environment)
    assert len({one.where.group for one in found}) == 20
    for one in found:
        if one.turn.kind == "play":
            assert one.turn.legal
            assert one.turn.action in one.legal
            assert BYTES.decode(one.reply_ids) == f"<action>{one.turn.action}</action>"
            shown = BYTES.decode(one.turn.prompt_ids).rsplit("<|user|>", 1)[1]
            assert one.turn.observation in shown, "the prompt is that of real play"


def test_scripted_moves_are_uniform_over_the_legal_ones():
    """Kuhn: bets in half of the situations, for every card (three standard deviations)."""
    moves = of_kind(demonstrations(KuhnPoker(), 200), "play")
    for card in "JQK":
        bets = Counter(turn.action for turn in moves if turn.anchor.startswith(card))
        assert abs(bets["bet"] / bets.total() - 0.5) < 3 * 0.5 / math.sqrt(bets.total())


@pytest.mark.parametrize("environment", WORLDS, ids=lambda world: world.name)
def test_scripted_notes_state_facts_of_the_episode_and_learn_where_to_end(environment):
    notes = [one for one in demonstrations(environment) if one.turn.kind == "reflect"]
    assert len(notes) == 40, "a note after every episode but the last"
    for one in notes:
        text = one.turn.completion.text
        said = facts_of(text)
        assert said
        assert len(set(said)) == len(said)
        assert set(said) <= set(facts_of(one.turn.observation))
        assert one.reply_ids == BYTES.encode(text) + BYTES.end_ids
    assert len({one.turn.completion.text for one in notes}) > 5


def test_notes_say_that_an_episode_ran_out_of_turns():
    turns = of_kind(demonstrations(Corridor(length=8, max_turns=3)), "reflect")
    notes = [turn.completion.text for turn in turns]
    assert RAN_OUT in notes
    facts = {fact for note in notes for fact in facts_of(note)}
    assert facts > {RAN_OUT}, "what was reached is told too"


def test_all_facts_are_equally_likely_and_a_long_note_ends_at_a_fact():
    recap = "A was so. B was so.\nC was so!"
    rng = random.Random(0)
    told = Counter(fact for _ in range(3000) for fact in facts_of(factual_note(recap, rng)))
    assert all(abs(told[fact] - 2000) < 120 for fact in facts_of(recap)), "two of three on average"
    assert all(len(factual_note(recap, rng, lambda text: len(text) < 20)) < 20 for _ in range(50))


@pytest.mark.parametrize("recap", ["", " \n"])
def test_the_note_on_a_recap_without_facts_is_empty(recap):
    assert factual_note(recap, random.Random(0)) == ""


def test_an_answer_that_does_not_fit_gives_an_error_with_the_option():
    agent = scripted_agent(str)
    tight = Agent(agent.engine, agent.chat, SamplingOptions(max_tokens=10))
    setup = PlaySetup(TicTacToe(), tight, Notes(keep="none"))
    with pytest.raises(ValueError, match=r"agent\.max_tokens = 10 is too small: .* <action>"):
        write_demonstrations(setup, tasks(TicTacToe(), 1), 0)


def test_a_note_that_does_not_fit_is_not_taught():
    """The shortest fact has more than three letters, and an end token follows it."""
    agent = scripted_agent(str)
    for limit, taught in ((4, 0), (400, 2)):
        sampling = SamplingOptions(max_tokens=64, reflection_tokens=limit)
        short = Agent(agent.engine, agent.chat, sampling)
        setup = PlaySetup(KuhnPoker(), short, Notes(keep="both"), episodes=3)
        found = write_demonstrations(setup, tasks(KuhnPoker(), 1), 0)
        assert sum(one.kind == "reflect" for one in found) == taught
        assert sum(one.kind == "play" for one in found) >= 3


# --- learning ---


def ignorant(seed: int = 0) -> tuple[LlamaForCausalLM, Chat]:
    """A tiny Llama with random weights and the embedded model's tokenizer."""
    chat = Chat.load(SHIPPED / "embedded")
    torch.manual_seed(seed)
    words = {"vocab_size": chat.tokenizer.get_vocab_size(), "hidden_size": 32}
    layers = {"intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**words, **layers, **heads)).eval(), chat


def warm(steps: int, keep: str, seed: int = 0) -> tuple[LlamaForCausalLM, Warmup]:
    model, chat = ignorant()
    engine = LocalEngine(model, chat, slots=64, context=512)
    agent = Agent(engine, chat, SamplingOptions(max_tokens=12, reflection_tokens=60))
    setup = PlaySetup(Corridor(), agent, Notes(keep=keep), episodes=2)
    endless = itertools.cycle(tasks(Corridor(), 8))
    options = WarmupOptions(steps=steps, batch=12, lr=2e-2, turns=40)
    how: Any = {"learn": LearnOptions(), "trainable": AllWeights(model), "watch": lambda line: None}
    return model, warm_up(model, setup, endless, options, seed, **how)


@pytest.mark.e2e
def test_a_random_model_learns_the_format_and_keeps_its_entropy():
    """Corridor: two moves at the west end and three elsewhere, so log 2 < entropy < log 3.

    A preference for one move would lose most of that entropy.
    """
    _, found = warm(steps=60, keep="none")
    assert found.before.readable == 0.0
    assert found.after.readable > 0.9
    assert found.after.legal > 0.8
    assert math.log(2) < found.uniform < math.log(3)
    assert found.after.entropy > 0.9 * found.uniform
    assert 0.5 < found.blind < 1.0
    assert (found.turns, found.notes) == (40, 0)


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_weights_and_figures():
    (one, first), (other, second), (_, third) = (warm(2, "reflections", seed) for seed in (0, 0, 1))
    assert first == second != third
    assert (first.turns, first.notes) == (40, 10)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_learning_has_the_memory_of_the_engine(monkeypatch):
    """Before every computation of the learner the engine has released what only play needs.

    A released engine is refreshed before it samples again.
    """
    events: list[str] = []

    def note(owner: object, name: str, event: str) -> None:
        before = getattr(owner, name)

        def noted(*given: object, **options: object) -> object:
            events.append(event)
            return before(*given, **options)

        monkeypatch.setattr(owner, name, noted)

    for name in ("submit", "release", "refresh"):
        note(LocalEngine, name, name)
    note(warmup, "imitate", "learn")
    note(skill, "action_entropy", "learn")
    warm(steps=2, keep="none")
    assert events.count("learn") == 4, "two steps, measured before and after"
    ready = True
    for event in events:
        assert event != "learn" or not ready
        assert event != "submit" or ready
        ready = event == "refresh" or (ready and event != "release")


def test_packed_padded_and_recomputed_steps_are_equal():
    agent = Agent(scripted_agent(str).engine, ignorant()[1], SamplingOptions())
    setup = PlaySetup(KuhnPoker(), agent, Notes())
    rows = [one.sample() for one in write_demonstrations(setup, tasks(KuhnPoker(), 3), 0)]
    found = []
    for layout, recompute in (("forest", False), ("rows", False), ("forest", True)):
        model, _ = ignorant()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        entropy = action_entropy(model, [row for row in rows if row.kind == "play"], layout=layout)
        how = {"layout": layout, "recompute": recompute}
        loss = sum(map(float, imitate(model, optimizer, rows, AllWeights(model), **how)))
        found.append((entropy, loss, list(model.parameters())))
    for other in found[1:]:
        assert found[0][:2] == pytest.approx(other[:2], rel=1e-5)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found[0][2], other[2]))


def test_the_learning_rate_rises_and_falls_to_a_tenth():
    options = WarmupOptions(steps=21, lr=1.0)
    assert [lr_at(options, step) for step in (0, 20)] == pytest.approx([0.5, 0.1])
    assert lr_at(options, 2) == pytest.approx(1 - 0.9 * 2 / 20)


# --- the verb ---


def run_verb(*words: str):
    return CliRunner().invoke(app, ["warmup", *words])


SMALL = (
    *("kuhn_demo", "--warmup.steps=2", "--warmup.batch=4", "--warmup.turns=8"),
    "--engines.slots=32",
)


@pytest.mark.e2e
def test_the_verb_writes_a_model_that_can_be_trained_and_says_how(tmp_path):
    done = run_verb(*SMALL, "--agent.temperature=0.9", "--out", str(tmp_path / "warm"), "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    command = "mage train kuhn_demo --engines.slots=32 --agent.temperature=0.9"
    assert said["train"] == f"{command} --model.path={tmp_path / 'warm'}"
    assert said["turns"] == 8
    assert len(said["losses"]) == 2
    assert not list(tmp_path.glob(".*"))
    record = json.loads((tmp_path / "warm" / "warmup.json").read_text())
    assert record["recipe"]["agent"]["temperature"] == 0.9
    before, after = (
        load_model(folder, "float32", "cpu").state_dict()
        for folder in (SHIPPED / "embedded", tmp_path / "warm")
    )
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    ids = Chat.load(SHIPPED / "embedded").encode("<action>bet</action>")
    assert read_action(Chat.load(tmp_path / "warm").decode(ids)) == "bet"


def test_without_steps_it_measures_and_writes_nothing(tmp_path):
    done = run_verb(*SMALL, "--warmup.steps=0", "--out", str(tmp_path / "warm"))
    assert done.exit_code == 0, done.output
    assert "legal moves" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no recipe is given"),
        (("kuhn_demo", "--warmup.step=3"), "did you mean 'steps'"),
        (("kuhn_demo", "--warmup.batch=0"), "warmup.batch = 0"),
        ((*SMALL, "--out", "."), "exists already"),
    ],
)
def test_a_user_error_is_one_message(words, message):
    done = run_verb(*(words if "--out" in words else (*words, "--out", "nowhere")))
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_recipe_with_a_warmup_section_can_be_trained(kuhn_tables):
    assert "warmup" not in build_recipe(kuhn_tables).tables(), "a run records what it used"
    said = build_recipe(kuhn_tables | {"warmup": {"steps": 12}})
    assert said.tables()["warmup"]["steps"] == 12
    assert build_recipe(said.tables()) == said


@pytest.mark.e2e
def test_training_can_start_with_a_warmup_and_keeps_its_adapters(tmp_path, no_pictures):
    few = (
        *("--play.groups=2", "--play.members=2", "--run.updates=1", "--run.workers=1"),
        *("--evaluate.size=4", "--evaluate.final_size=4", "--engines.slots=32"),
    )
    own = (
        *("--warmup.first=true", "--warmup.steps=2", "--warmup.batch=4", "--warmup.turns=8"),
        *("--warmup.lr=0.01", "--learn.lora_rank=2"),
    )
    words = ["train", "kuhn_demo", *few, *own, "--runs", str(tmp_path), "--run.name=one", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    warm = tmp_path / "one" / "warm"
    assert {path.name for path in warm.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "checksums.json", "warmup.json")
    }
    before, after = (
        load_model(folder, "float32", "cpu").state_dict() for folder in (SHIPPED / "embedded", warm)
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)
    started = load_file(warm / "adapter_model.safetensors")
    trained = load_file(tmp_path / "one" / "checkpoints" / "update_000000" / "adapter.safetensors")
    assert all(
        torch.equal(value, trained[name.removeprefix("base_model.model.")].to(value.dtype))
        for name, value in started.items()
    )
    words = ["evaluate", str(tmp_path / "one"), "--size", "4", "--checkpoint", "latest"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_a_signal_stops_a_warmup_at_once(tmp_path):
    own = {"first": "true", "steps": 10_000, "batch": 1, "turns": 2}
    changes = [f"--warmup.{name}={value}" for name, value in own.items()]
    folder = RunFolder.create(tmp_path / "run", load_recipe("kuhn_demo", changes))
    lines: list[str] = []

    class Stopper(Callback):
        def on_warmup(self, line: str) -> None:
            lines.append(line)
            os.kill(os.getpid(), signal.SIGTERM)

    with StopSignals() as stop, pytest.raises(Stopped):
        train(folder.path, Stopper(), stop)
    assert len(lines) == 1
    assert not folder.warm.exists(), "the resumed run does the warm-up again"
