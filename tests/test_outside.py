"""Worlds of MAGE for other libraries: Gymnasium's checker and one step of TRL's GRPOTrainer."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import mage
from mage.api import worlds
from mage.config.errors import UserError
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.sokoban import Sokoban
from mage.models.base import find_model
from mage.play.outside import OutsidePlay
from tests.corridor import Corridor, CorridorState


def play_out(play: OutsidePlay, seed: int) -> list[str]:
    """Random legal replies to the end; everything that was shown."""
    rng, shown = random.Random(seed), [play.shown]
    while not play.over:
        play.reply(f"I think. <action>{rng.choice(play.legal())}</action>")
        shown.append(play.shown)
    return shown


def test_a_meta_episode_has_recaps_scores_and_the_same_moves_for_the_same_seed():
    first, second = (OutsidePlay(KuhnPoker(), "conservative", 1, 3, seed=5) for _ in range(2))
    shown = play_out(first, 0)
    assert shown == play_out(second, 0)
    assert [text.count("Game 2 of 3.") for text in shown].count(1) == 1
    assert "Game 3 of 3." in "".join(shown)
    assert len(first.scores) == 3
    assert first.total() == sum(first.scores)


def test_illegal_and_missing_moves_never_pay():
    world = KuhnPoker(max_turns=2)
    play = OutsidePlay(world, "conservative", 0, 2, seed=0)
    assert play.total() == 2 * world.forfeit_score
    assert play.reply("raise") == 0.0
    assert play.shown.startswith("That is not a legal move.")
    assert play.reply("") == world.forfeit_score
    assert "You gave no legal move and forfeited." in play.shown
    assert play.scores == [world.forfeit_score]


def test_a_world_with_one_agent_ends_at_the_turn_limit():
    play = OutsidePlay(Corridor(), "", 0, 1, seed=0)
    for _ in range(Corridor().max_turns):
        play.reply("wait")
    assert (play.over, play.scores) == (True, [0.0])
    assert "The turns ran out." in play.shown


def test_a_reply_also_returns_the_score_of_an_episode_that_ends_before_the_agent_moves(monkeypatch):
    """Episodes 1 and 3 of five start at the door, and so are won without a move."""
    starts: list[int] = []

    def start(world: Corridor, seed: int) -> CorridorState:
        starts.append(seed)
        state = CorridorState(world.length, seed)
        state.place = world.length if len(starts) in (1, 3) else 0
        return state

    monkeypatch.setattr(Corridor, "start", start)
    play = OutsidePlay(Corridor(), "", 0, 5, seed=0)
    assert play.scores == [1.0]
    assert play.shown.count("found the door!") == 1
    assert "Game 2 of 5." in play.shown
    assert [play.reply("go east"), play.reply("go east")] == [0.0, 2.0]
    assert play.scores == [1.0, 1.0, 1.0]
    assert play.shown.count("found the door!") == 2
    assert "Game 4 of 5." in play.shown


def test_tasks_are_those_of_the_split():
    """A room is in the held-out part or in the training part, whoever plays it."""
    for split in ("train", "test"):
        play = OutsidePlay(Sokoban(), "", 0, 1, seed=3, split=split)
        expected = Sokoban(part=split)
        start = expected.start(expected.episode_seed(3, 0))
        assert play.state.observe(0) == start.observe(0)
    env = mage.as_gymnasium("alfworld", split="test", receptacles=4, objects=4)
    env.reset(seed=0)
    assert (env.play.environment.split, env.play.task.split) == ("test", "test")


def test_wrong_opponents_and_options_are_refused():
    for arguments, message in (
        (("kuhn_poker", {}), "kuhn_poker needs an opponent"),
        (("kuhn_poker", {"opponent": "league-1"}), "league-1 does not play kuhn_poker outside"),
        (("sokoban", {"opponent": "random"}), "sokoban has no opponents"),
        ((Corridor(), {"length": 3}), "options have no effect"),
    ):
        name, options = arguments
        with pytest.raises(UserError, match=message):
            mage.as_trl(name, **options)


def test_gymnasium_accepts_a_world_and_random_moves_are_legal():
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    env = mage.as_gymnasium("kuhn_poker", opponent="conservative", episodes=2)
    check_env(env, skip_render_check=True)
    text, info = env.reset(seed=3)
    assert text.startswith("You play Kuhn poker")
    assert env.reset(seed=3) == (text, info)
    env.action_space.seed(0)
    done, rewards = False, []
    while not done:
        _, reward, done, _, info = env.step(env.action_space.sample())
        rewards.append(reward)
    assert sum(rewards) == sum(info["scores"])
    with pytest.raises(UserError, match="must be reset"):
        env.step("bet")


def test_without_the_package_one_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    make = worlds._gymnasium_class.__wrapped__  # without its cache
    monkeypatch.setattr(worlds, "_gymnasium_class", make)
    with pytest.raises(UserError, match=r"pip install '\.\[gymnasium\]' in the checkout of MAGE$"):
        mage.as_gymnasium("kuhn_poker", opponent="random")


def test_a_class_for_trl_has_one_tool_a_reward_and_rows_with_seeds():
    world = mage.as_trl("kuhn_poker", opponent="conservative", episodes=2)
    rows = world.rows(3)
    assert len({row["seed"] for row in rows}) == 3
    one, other = world(), world()
    assert one.reset(**rows[0]) == other.reset(**rows[0])
    with pytest.raises(UserError, match="no column `seed`"):
        one.reset(prompt=[])
    public = [name for name, kind in vars(world).items() if not name.startswith("_")]
    assert public == ["reset", "move", "get_reward", "rows"]
    for _ in range(20):
        last = other.move("bet")
    assert last == "All games are over. Do not move any more."
    assert isinstance(other.get_reward(), float)


@pytest.mark.e2e
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_one_step_on_a_world(tmp_path):
    """A random model that bets or passes by the tool: the rewards are those of the games."""
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    world = mage.as_trl("kuhn_poker", opponent="conservative", episodes=2)
    model, tokenizer = caller_model()
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "num_generations": 4}
    options |= {"max_steps": 1, "logging_steps": 1, "max_completion_length": 512, "report_to": []}
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **options),
        train_dataset=Dataset.from_list(world.rows(4)),
        environment_factory=world,
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["tools/call_frequency"] > 0
    assert logged["tools/failure_frequency"] == 0
    assert -4 <= logged["reward"] <= 4
    assert trainer.state.global_step == 1


def caller_model() -> tuple[Any, Any]:
    """A small random Qwen3 whose generation always calls the tool, with TRL's Qwen3 template."""
    import torch
    import trl
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(find_model("embedded"))
    tokenizer.chat_template = (folder / "qwen3.jinja").read_text()
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    rng = random.Random(0)

    class Caller(Qwen3ForCausalLM):
        def generate(self, input_ids: Any, **_: Any) -> Any:
            texts = [
                '<tool_call>\n{"name": "move", "arguments": {"action": "'
                + rng.choice(["bet", "pass"])
                + '"}}\n</tool_call><|im_end|>'
                for _ in input_ids
            ]
            ids = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
            return torch.cat([input_ids, ids["input_ids"]], dim=1)

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096, "bos_token_id": None}
    config = Qwen3Config(**sizes, **heads, **ids, **words, tie_word_embeddings=True)
    return Caller(config), tokenizer
