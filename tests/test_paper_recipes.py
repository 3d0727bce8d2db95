"""The paper_* recipes against a table of the paper's values, with the source of each value.

Sources: "A" = Appendix A (rewards), "1" = the loop, "2" = returns, "4" = advantages, "5" = training
(Table 2), "6" = environments (Appendix B.2), "8" = evaluation (128 tasks, up to 10 episodes).
docs/differences.md lists where paper and code disagree.
"""

from typing import Any

import pytest
from toys import meta

from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.credit.trajectories import credit_rows

WORLDS = ("tic_tac_toe", "kuhn_poker", "sokoban", "alfworld", "webshop")
SINGLE_AGENT = ("sokoban", "alfworld", "webshop")

# option, source, then one value for each environment in the order of WORLDS
TABLE: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("play.groups", "6: tasks x group", (16, 16, 16, 8, 8)),
    ("play.members", "6: tasks x group", (8,) * 5),
    ("play.episodes", "1: N = 3 in training", (3,) * 5),
    ("play.stop_on_success", "1: published code", (True,) * 5),
    ("environments.max_turns", "6: max turns", (8, 6, 7, 10, 12)),
    ("environments.restart", "1: same instance replayed", ("same",) * 5),
    ("environments.reward_scale", "A: +10 for success", (10.0,) * 5),
    ("environments.failure_reward", "A: -10 for failure", (None, None, -10.0, -10.0, -10.0)),
    ("play.illegal_penalty", "A, Table 2: 0.5", (0.5,) * 5),
    ("play.length_penalty", "A: lambda", (2.0, 2.0, 1.0, 0.0, 0.0)),
    ("agent.max_tokens", "6: reply tokens", (3072, 4096, 4096, 1024, 1024)),
    ("agent.reflection_tokens", "6: reply tokens", (3072, 4096, 4096, 1024, 1024)),
    ("agent.prompts", "published prompts", ("published",) * 5),
    ("agent.window", "published windows", (None, None, 7, 15, 5)),
    ("agent.temperature", "published code", (1.0,) * 5),
    ("returns.kind", "2: differential", ("differential",) * 5),
    ("returns.step_discount", "2: g_step", (0.95,) * 5),
    ("returns.episode_discount", "2: g_traj", (0.6,) * 5),
    ("returns.propagation", "eq. 7", ("paper",) * 5),
    ("returns.penalties", "eq. 5 and 6: task reward only", (False,) * 5),
    ("advantages.name", "published code", ("published",) * 5),
    ("advantages.anchor", "4: global anchor", ("global",) * 5),
    ("advantages.step_weight", "4: w = 1", (1.0,) * 5),
    ("learn.lr", "5: constant 1e-6", (1e-6,) * 5),
    ("learn.decay", "5: constant", (1.0,) * 5),
    ("learn.warmup", "5: constant", (0,) * 5),
    ("learn.beta2", "5: AdamW", (0.999,) * 5),
    ("learn.weight_decay", "5: AdamW", (0.01,) * 5),
    ("learn.minibatch_rows", "5: mini-batches of 64 rows", (64,) * 5),
    ("learn.epochs", "5: one epoch", (1,) * 5),
    ("learn.clip", "5: PPO clip", (0.2,) * 5),
    ("learn.dual_clip", "5: dual clip", (3.0,) * 5),
    ("learn.kl", "B.2: 0.1 in Tic-Tac-Toe", (0.1, 0.0, 0.0, 0.0, 0.0)),
    ("learn.token_entropy", "published default", (0.001,) * 5),
    ("learn.grad_clip", "5: gradient clip", (1.0,) * 5),
    ("run.updates", "6: updates", (150, 150, 300, 150, 150)),
    ("evaluate.final_size", "8: 128 tasks", (128,) * 5),
    ("evaluate.episodes", "1: up to 10", (10,) * 5),
    ("evaluate.temperature", "5: T = 0.7", (0.7,) * 5),
    ("evaluate.top_p", "5: top-p 0.8", (0.8,) * 5),
    ("evaluate.top_k", "5: top-k 20", (20,) * 5),
    ("evaluate.seats", "published code", ("first", "first", None, None, None)),
    ("evaluate.ood_seats", "published code", ("first", "second", None, None, None)),
    ("evaluate.splits", "6: in-domain, out of domain", (("test", "ood"),) * 5),
)


@pytest.mark.parametrize("world", WORLDS)
def test_the_paper_recipe_has_the_values_of_the_paper(world):
    tables = load_recipe(f"paper_{world}").tables()
    for option, source, values in TABLE:
        section, name = option.split(".")
        expected = values[WORLDS.index(world)]
        assert tables[section].get(name) == expected, f"{option}, source {source}"


def test_the_tasks_of_the_single_agent_environments_are_those_of_the_paper():
    """Appendix B.2 of the paper."""
    sokoban = load_recipe("paper_sokoban").environment()
    assert (sokoban.size, sokoban.boxes, sokoban.ood_boxes) == (6, (2,), (1, 3))
    assert (sokoban.shortest, sokoban.longest, sokoban.turn_moves) == (5, 21, 3)
    assert load_recipe("paper_alfworld").environment().data == "official"
    webshop = load_recipe("paper_webshop").environment()
    assert (webshop.data, webshop.test_goals) == ("official", 500)


@pytest.mark.parametrize(
    ("world", "prompt", "reply"),
    [
        ("tic_tac_toe", 4096, 3072),
        ("kuhn_poker", 4096, 4096),
        ("sokoban", 4096, 4096),
        ("alfworld", 4096, 1024),
        ("webshop", 10240, 1024),  # the longer pages out of domain
    ],
)
def test_the_context_holds_the_prompt_and_the_reply_of_the_paper(world, prompt, reply):
    assert load_recipe(f"paper_{world}").engines.options["context"] >= prompt + reply


def test_the_paper_opponents_are_those_of_the_paper():
    """Section 4.1 of the paper: half MCTS, the rest patterns and random; three styles."""
    tic_tac_toe = load_recipe("paper_tic_tac_toe").opponents
    assert tic_tac_toe.train["mcts-100"] == 0.5
    assert sum(tic_tac_toe.train.values()) == pytest.approx(1)
    assert tic_tac_toe.test == {"mcts-100": 1.0}
    assert tic_tac_toe.ood == {"mcts-1000": 1.0}
    kuhn_poker = load_recipe("paper_kuhn_poker").opponents
    assert kuhn_poker.train == {"conservative": 0.3, "aggressive": 0.3, "intermediate": 0.4}
    assert kuhn_poker.ood == {"cfr_argmax": 1.0}


# Scores of three members. The lowest score is a failure: 0 in a single-agent environment.
SCORES = ((0.0, 1.0), (0.0, 0.0, 0.0), (1.0,))


def advantages(recipe_name: str, *overrides: str) -> list[float]:
    recipe = load_recipe(recipe_name, overrides)
    environment = recipe.environment()
    lowest = environment.forfeit_score
    metas = [
        meta(tuple(environment.reward(score or lowest) for score in scores), member)
        for member, scores in enumerate(SCORES)
    ]
    return [row.advantage for row in credit_rows(metas, recipe)]


@pytest.mark.parametrize("world", WORLDS)
def test_mage_and_lamer_have_different_advantages_in_the_paper_recipes(world):
    assert advantages(f"paper_{world}+mage") != advantages(f"paper_{world}+lamer")


@pytest.mark.parametrize("world", SINGLE_AGENT)
def test_mage_equals_lamer_if_a_failure_pays_zero(world):
    zero = "--environments.failure_reward=0"
    mage, lamer = (advantages(f"paper_{world}+{method}", zero) for method in ("mage", "lamer"))
    assert mage == lamer


def test_graded_pay_and_a_failure_reward_exclude_each_other():
    with pytest.raises(ConfigError, match="pay = 'graded' has no effect with failure_reward"):
        load_recipe("webshop", ["--environments.failure_reward=-10"])
