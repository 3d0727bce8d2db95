"""`mage train openspiel`: any two-player OpenSpiel game trains against random_policy."""

import json

import pytest

from mage.config.loading import load_recipe
from mage.environments.base import check
from mage.environments.openspiel import OpenSpiel
from mage.opponents.base import population_of
from mage.run_folder import RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train

SMALL = [
    *("--run.updates=1", "--run.evaluate_every=0", "--run.move_probabilities=false"),
    *("--play.groups=1", "--play.members=2", "--warmup.steps=1", "--warmup.batch=2"),
    *("--warmup.turns=4", "--evaluate.size=2", "--evaluate.final_size=2"),
    *("--environments.max_turns=2", "--evaluate.before=false"),
]
# The first has hidden cards, the second simultaneous moves.
GAMES = ("leduc_poker", "goofspiel(num_cards=4)", "liars_dice", "connect_four", "blotto(coins=5)")


@pytest.mark.e2e
@pytest.mark.parametrize("game", GAMES[:2])
def test_a_game_of_openspiel_trains_without_other_options(game, tmp_path):
    recipe = load_recipe("openspiel", [f"--environments.game={game}", *SMALL])
    assert population_of(recipe).pool("train") == {"random_policy-0.5": 1.0}
    folder = RunFolder.create(tmp_path / "run", recipe)
    train(folder.path, Callback(), lambda: False)
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in lines] == [1]


@pytest.mark.parametrize("game", GAMES)
def test_the_rules_of_a_game_are_readable(game):
    world = OpenSpiel(game=game)
    assert check(world, games=3) == []
    assert len(world.rules()) > 60
    text = world.start(1).observe(0)
    assert "Current player" not in text
    assert "[P0]" not in text
