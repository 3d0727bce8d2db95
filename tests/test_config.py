"""Recipes: their resolved values, and one clear message for every error."""

import re
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mage.config.errors import ConfigError
from mage.config.loading import change_recipe, load_layers, load_recipe
from mage.config.menus import find_item, menu
from mage.config.recipe import build_recipe
from mage.config.sections import LearnOptions
from mage.config.toml import dump_toml
from mage.environments.kuhn_poker import KuhnPoker
from mage.environments.tic_tac_toe import TicTacToe
from mage.memory.notes import Notes
from mage.models.base import model_folder
from mage.opponents.base import population_of

Tables = dict[str, dict[str, Any]]

RECIPE = """
[environments]
name = "kuhn_poker"
restart = "same"

[opponents.train]
conservative = 0.5
mcts-10 = 0.5

[play]
episodes = 2
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


def message_of(tables: Tables) -> str:
    with pytest.raises(ConfigError) as caught:
        build_recipe(tables)
    return str(caught.value)


# -- resolved values


def test_a_recipe_builds_its_items_with_their_options(recipe_file):
    recipe = load_recipe(recipe_file)
    assert recipe.environment() == KuhnPoker(restart="same")
    assert recipe.memory() == Notes(keep="reflections")
    assert population_of(recipe).pool("test") == {"conservative": 0.5, "mcts-10": 0.5}
    assert recipe.play.episodes == 2


def test_the_resolved_recipe_contains_the_defaults_of_menu_items(recipe_file):
    tables = load_recipe(recipe_file).tables()
    assert tables["environments"] == {
        **{"name": "kuhn_poker", "restart": "same", "max_turns": 6, "reward_scale": 5.0},
        **{"game": "kuhn_poker", "pay": "chips", "forfeits": True, "panel": "balanced"},
    }
    assert tables["advantages"]["step_weight"] == 1.0
    assert tables["returns"]["episode_discount"] == 0.6


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "--returns.kind=single --memory.keep=none --learn.packed=false",
        "--returns.kind=final --returns.weights=[0,1] --learn.entropy=0.1",
        "--learn.lora_rank=8 --evaluate.temperature=0 --advantages.name=grpo",
        "--environments.name=openspiel --environments.game=nim --opponents.train={random=1}",
        "--evaluate.splits=['train','test'] --learn.entropy=1 --learn.entropy_final=0.01",
    ],
)
def test_a_resolved_recipe_loads_as_an_equal_recipe(recipe_file, tmp_path, overrides):
    recipe = load_recipe(recipe_file, overrides.split())
    (tmp_path / "resolved.toml").write_text(recipe.toml())
    again = load_recipe(tmp_path / "resolved.toml")
    assert again == recipe
    assert again.toml() == recipe.toml()


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("--play.seats=first", lambda recipe: recipe.play.seats, "first"),
        ("play.groups=4", lambda recipe: recipe.play.groups, 4),
        ("--learn.lr=1e-5", lambda recipe: recipe.learn.lr, 1e-5),
        ("--opponents.test.cfr=1", lambda recipe: recipe.opponents.test, {"cfr": 1.0}),
        ("--run.name=a-1", lambda recipe: recipe.run.name, "a-1"),
        ("--play.stop_on_success=true", lambda recipe: recipe.play.stop_on_success, True),
        ("--play.episodes=", lambda recipe: recipe.play.episodes, 3),  # the default
        ("--memory.keep=history", lambda recipe: recipe.memory(), Notes(keep="history")),
        # Evaluation uses the episodes and seats of training unless given.
        ("--run.seed=0", lambda recipe: recipe.evaluation_episodes(), 2),
        ("--evaluate.episodes=5", lambda recipe: recipe.evaluation_episodes(), 5),
        ("--play.seats=second", lambda recipe: recipe.evaluation_seats("test"), "second"),
        ("--evaluate.seats=first", lambda recipe: recipe.evaluation_seats("test"), "first"),
        ("--evaluate.seats=first", lambda recipe: recipe.evaluation_seats("ood"), "first"),
    ],
)
def test_overrides_are_toml_values_or_words(recipe_file, override, read, value):
    assert read(load_recipe(recipe_file, [override])) == value


def test_the_estimator_has_its_options(recipe_file):
    words = ["--advantages.name=grpo", "--advantages.leave_one_out=true"]
    estimate: Any = load_recipe(recipe_file, words).estimator()
    assert estimate.keywords == {"normalise": "mean_std", "leave_one_out": True}
    assert estimate([]) == []


def test_change_recipe_drops_options_that_lose_their_effect(recipe_file):
    recipe = load_recipe(recipe_file, ["--agent.reflection_tokens=64"])
    assert change_recipe(recipe, ["--memory.keep=none"]).memory() == Notes(keep="none")
    message = r"learn\.entropy_final = 0\.5: has no effect while learn\.entropy = 0"
    with pytest.raises(ConfigError, match=message):
        change_recipe(recipe, ["--learn.entropy_final=0.5"])


def test_learning_rate_and_entropy_change_linearly():
    options = LearnOptions(lr=1.0, warmup=2, decay=0.5, entropy=0.4, entropy_final=0.2)
    # By hand: the rate rises for two updates, then falls from 1 to 0.5; entropy falls over all.
    rates = [options.lr_at(update, 5) for update in range(5)]
    entropies = [options.entropy_at(update, 5) for update in range(5)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5])
    assert entropies == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2])
    assert LearnOptions(lr=0.25).lr_at(0, 1) == 0.25


words = st.text("aé.'\"\\\n\t\x7f =#[]\U0001f600", max_size=8)
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
values = st.one_of(st.booleans(), numbers, words, st.lists(st.integers(0, 9), max_size=3))
inner = st.dictionaries(words, values, max_size=3)
sections = st.dictionaries(words, st.one_of(values, inner), max_size=3)


@given(st.dictionaries(words, sections, max_size=3))
def test_toml_text_is_read_back_unchanged(tables):
    assert tomllib.loads(dump_toml(tables)) == tables


# -- errors: what was given, what is allowed, where to change it


# A change of the recipe as TOML | parts of the message.
ERRORS = """
lern.lr = 1.0 | [lern] is unknown (did you mean 'learn'?) | sections are environments, run | memory
learn.lrr = 1.0 | learn.lrr is unknown (did you mean 'lr'?) | [learn] takes lr, beta2 | correct it
    in [learn] of the recipe
learn.lr = -1.0 | learn.lr = -1.0: must be greater than 0 (learning rate of AdamW) | [learn] of the
    recipe, or use --learn.lr=...
learn.lr = nan | learn.lr = nan: must be a finite number
learn.packed = "yes" | learn.packed = "yes": must be a valid boolean
learn = 3 | learn = 3: must be a table | top level
play.members = 1 | play.members = 1: must be greater than or equal to 2
play.members = true | play.members = true: must be a valid integer
play.seats = "frist" | play.seats = "frist": must be 'first', 'second' or 'both' (did you mean
    'first'?)
run.device = "gpu" | run.device = "gpu": is not allowed here (auto, cpu, mps, cuda or cuda:N)
run.name = "../up" | run.name = "../up": is not allowed here | letters, digits
evaluate.splits = ["odd"] | evaluate.splits = "odd": must be 'train', 'test' or 'ood' (did you mean
    'ood'?)
environments = {} | environments.name is missing; add it to [environments]
environments.name = "kuhn_pokr" | no 'kuhn_pokr' (did you mean 'kuhn_poker'?), only  | tic_tac_toe,
    webshop; a dotted path
environments.name = "../x" | mage/environments/ has no '../x' | --environments.name=...
environments.name = "base" | mage/environments/ has no 'base'
environments.name = "no_lab.nim" | no_lab cannot be imported | Install the package | change it in
    [environments]
environments.name = "json.decoder" | json.decoder is not and does not contain a subclass of mage.env
environments = {name = "kuhn_poker", restat = "same"} | environments.restat is unknown (did you mean
    'restart'?) | takes restart, max_turns
environments = {name = "kuhn_poker", restart = "sam"} | must be 'same' or 'fresh' (did you mean
    'same'?)
environments = {name = "openspiel", game = "chss"} | environments.game = "chss": OpenSpiel has no
    game 'chss'
memory.name = "note" | mage/memory/ has no 'note' (did you mean 'notes'?)
memory.keep = "all" | memory.keep = "all": must be 'none', 'reflections', 'history' or 'both'
engines.name = "loca" | mage/engines/ has no 'loca' (did you mean 'local'?)
advantages = {name = "grpo", anchor = "local"} | advantages.anchor is unknown: [advantages] takes
    normalise, leave_one_out
advantages.step_weight = "x" | advantages.step_weight = "x": must be a valid number
advantages.anchor = "globl" | advantages.anchor = "globl": must be 'global' or 'local' (did you mean
    'global'?)
opponents = {} | opponents.train is missing: kuhn_poker needs opponents
opponents.train.mtcs-100 = 1.0 | mage/opponents/ has no 'mtcs' | only aggressive, bayes, biased |
    (did you mean 'mcts'?)
opponents.train.mcts-0 = 1.0 | opponents.train.mcts-0 = 1.0: opponent 'mcts-0': simulations = '0':
    must be greater than or equal to 1
opponents.train.mcts-1-2 = 1.0 | 'mcts-1-2' has 2 options, but mcts takes 1
opponents.train.random = 0.0 | opponents.train.random = 0.0: a share must be greater than 0
opponents = {train.random = 1.0, ood.pattern-2 = 1.0} | opponents.ood.pattern-2 = 1.0: pattern-2
    does not play kuhn_poker | cfr
evaluate.splits = ["test", "ood"] | evaluate.splits = ["test", "ood"]: names ood, but opponents.ood
    is empty
returns.kind = "final" | returns.weights is missing | needs one weight an episode (3)
returns = {kind = "final", weights = [0.0, 1.0]} | returns.weights = [0.0, 1.0]: play.episodes = 3
    needs 3 weights, not 2
returns = {kind = "final", weights = [0, 0, 0]} | at least one weight must differ from 0
returns = {kind = "final", weights = [0, "a", 1]} | returns.weights = "a": must be a valid number
run = {workers = 3, deal = "groups"}; play = {groups = 2, members = 2} | run.workers = 3: more
    workers than the 2 groups
run.workers = 5; play = {groups = 2, members = 2} | run.workers = 5: more workers than the 4 meta-ep
evaluate.plays = 2; memory.name = "memento" | evaluate.plays = 2: must be 1 with a memory that
    persists
learn = {shard = "full", lora_rank = 4} | learn.shard = "full": divides all weights, but
    learn.lora_rank
learn.graphs = true | learn.graphs = true: is for adapters: set learn.lora_rank
learn = {graphs = true, lora_rank = 4, recompute = true} | learn.graphs = true: keeps activations
learn = {graphs = true, lora_rank = 4, packed = false} | learn.graphs = true: needs learn.packed
"""
# A change of the recipe as TOML | the option | when it has no effect.
WITHOUT_EFFECT = """
returns.weights = [0.0, 0.0, 1.0] | returns.weights | unless returns.kind = "final"
returns = {kind = "single", episode_discount = 0.6} | returns.episode_discount | with returns.kind =
    "single", "final" or "balanced"
returns = {kind = "final", weights = [0, 0, 1], episode_discount = 0.6} | returns.episode_discount |
    with returns.kind = "single", "final" or "balanced"
returns = {kind = "single", propagation = "code"} | returns.propagation | with returns.kind =
    "single"
learn.entropy_final = 0.1 | learn.entropy_final | while learn.entropy = 0
learn = {minibatches = 4, minibatch_rows = 64} | learn.minibatches | together with
    learn.minibatch_rows
learn = {packed = false, tree_tokens = 100} | learn.tree_tokens | while learn.packed = false
play = {episodes = 1, stop_on_success = true} | play.stop_on_success | with play.episodes = 1
memory.keep = "history"; agent.reflection_tokens = 9 | agent.reflection_tokens | with a memory that
    asks for no reflections
warmup = {play = "expert", own_steps = 9, own_labels = "after_loss"}; play.episodes = 1 |
    warmup.own_labels | with play.episodes = 1
evaluate = {temperature = 0, top_p = 0.9} | evaluate.top_p | with evaluate.temperature = 0
evaluate = {temperature = 0, top_k = 9} | evaluate.top_k | with evaluate.temperature = 0
"""


def rows_of(table: str) -> list[list[str]]:
    """The cells of each row; an indented line continues the one before."""
    lines = re.sub(r"\n +", " ", table.strip()).splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


@pytest.mark.parametrize("row", rows_of(ERRORS), ids=lambda row: row[0])
def test_an_error_says_what_is_allowed_and_where_to_change_it(kuhn_tables, row):
    message = message_of(kuhn_tables | tomllib.loads(row[0].replace("; ", "\n")))
    assert "\n" not in message
    for part in row[1:]:
        assert part in message


@pytest.mark.parametrize("row", rows_of(WITHOUT_EFFECT), ids=lambda row: row[0])
def test_an_option_without_effect_is_an_error(kuhn_tables, row):
    change, key, needs = row
    message = message_of(kuhn_tables | tomllib.loads(change.replace("; ", "\n")))
    assert message.startswith(f"{key} = ")
    assert (
        f"has no effect {needs}; remove it from [{key.split('.')[0]}] of the recipe, "
        f"or use --{key}= with an empty value" in message
    )


@pytest.mark.parametrize("name", ["qwen_rps", "qwen_kuhn_poker+memory_history", "qwen_alfworld"])
def test_the_advice_of_an_empty_value_works_with_parts_and_bases(name):
    changes = ["--returns.kind=cumulative", "--returns.own_difference="]
    assert load_recipe(name, changes).returns.kind == "cumulative"


def test_several_errors_are_reported_together(kuhn_tables):
    message = message_of(kuhn_tables | {"learn": {"lr": -1.0, "clip": 2.0}, "lern": {}})
    assert [line.split()[0] for line in message.splitlines()] == [
        "learn.lr",
        "learn.clip",
        "[lern]",
    ]


FORM = "is not an override: write --section.option=value"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, FORM) for text in ("--learn.lr", "--seed=1", "--=1", "--a..b=1", "--a.b x=1")),
        ("-- #", FORM),
        ("--learn.lr=0", "change it in the command line (--learn.lr)"),
        ("--play.episodes.x=1", "play.episodes is a value, not a table"),
        (f"--run.seed={'9' * 5000}", "is not a valid value: Exceeds the limit"),
        (f"--returns.weights={'[' * 5000}", "is not a valid value: "),
        ("--advantages.name=subprocess.Popen", "Popen is not and does not contain a function est"),
        ("--advantages.name=os.path.join", "join is not and does not contain a function estimate"),
        ("--environments.name=mage.environments.base.Environment", "not contain a subclass of"),
        ('--opponents.train."os.system"=1', 'opponents.train."os.system" = 1.0'),
        ('--"".""=1', '[""] is unknown'),
        ("--lern.a.b=", "[lern] is unknown"),
        ("--agent.window=0", "agent.window = 0: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_override_has_one_message(recipe_file, text, message):
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe_file, [text])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_empty_value_of_an_option_that_is_not_set_changes_nothing():
    plain = load_recipe("kuhn_reflections")
    assert load_recipe("kuhn_reflections", ["--opponents.test.random="]) == plain


def test_an_error_names_the_file(recipe_file):
    recipe_file.write_text(RECIPE + "groups = 0\n")
    end = f"change it in [play] of {recipe_file}, or use --play.groups=..."
    with pytest.raises(ConfigError, match=f"{re.escape(end)}$"):
        load_recipe(recipe_file)


def test_the_message_for_a_missing_recipe_lists_the_known_ones(tmp_path):
    known = r"there is no recipe 'nothing_like_it'.*the recipes are .*ends with \.toml"
    with pytest.raises(ConfigError, match=known):
        load_recipe("nothing_like_it")
    with pytest.raises(ConfigError, match=r"there is no recipe '.*gone\.toml': check the path"):
        load_recipe(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[learn\nlr = 1", "is not valid TOML.*line 1"),
        (b"\xff\xfe", "cannot be read"),
        *((b"[run]\nseed = " + many * 5000, "is not valid TOML") for many in (b"9", b"[")),
    ],
)
def test_the_message_for_invalid_toml_names_the_file(tmp_path, data, words):
    path = tmp_path / "torn.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        load_recipe(path)


def test_the_message_for_a_wrong_model_folder_names_the_option(recipe_file, tmp_path):
    message = r"model\.path = .*has no config\.json; change it in \[model\]"
    with pytest.raises(ConfigError, match=message):
        model_folder(load_recipe(recipe_file, [f"--model.path={tmp_path}"]))


# -- engines: options are checked when the engine is loaded


def test_engine_options_are_keyword_arguments_of_the_engine(recipe_file):
    engine: Any = load_recipe(recipe_file, ["--engines.slots=7"]).engine()
    assert engine.func.__name__ == "LocalEngine"
    assert engine.keywords["slots"] == 7
    unknown = r"engines\.slotz is unknown \(did you mean 'slots'\?\): \[engines\] takes slots, cont"
    with pytest.raises(ConfigError, match=unknown):
        load_recipe(recipe_file, ["--engines.slotz=7"]).engine()
    with pytest.raises(ConfigError, match=r'engines\.slots = "many": must be a valid integer'):
        load_recipe(recipe_file, ["--engines.slots=many"]).engine()


# -- items of other packages


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
    """An outside package: a single-agent environment, a file with two, and an estimator."""
    package = tmp_path / "my_lab_of_tests"
    package.mkdir()
    (package / "__init__.py").touch()
    source = """
        from typing import ClassVar
        from pydantic import Field
        from mage.environments.tic_tac_toe import TicTacToe

        class Alone(TicTacToe):
            name: ClassVar[str] = "alone"
            multi_agent: ClassVar[bool] = False
            pile: int = Field(3, ge=1)
    """
    (package / "alone.py").write_text(textwrap.dedent(source))
    (package / "two.py").write_text(
        textwrap.dedent(source) + "\n\nclass Other(Alone):\n    name: ClassVar[str] = 'other'\n"
    )
    (package / "mine.py").write_text(
        "def estimate(returns, *, scale: float, shift: float = 0.0):\n    return [scale, shift]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package.name
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def test_a_dotted_path_names_a_module_or_a_class_of_another_package(my_lab):
    recipe = build_recipe({"environments": {"name": f"{my_lab}.alone", "pile": 5}})
    assert recipe.tables()["environments"]["pile"] == 5
    assert isinstance(recipe.environment(), TicTacToe)
    assert build_recipe(tomllib.loads(recipe.toml())) == recipe
    other = build_recipe({"environments": {"name": f"{my_lab}.two.Other"}})
    assert other.environment().name == "other"
    message = message_of({"environments": {"name": f"{my_lab}.two"}})
    assert "holds several items (Alone, Other): choose one, as in" in message


def test_an_estimator_of_another_package_is_checked_by_its_signature(my_lab, kuhn_tables):
    mine = {"name": f"{my_lab}.mine"}
    recipe = build_recipe(kuhn_tables | {"advantages": mine | {"scale": 2.0}})
    assert recipe.estimator()([]) == [2.0, 0.0]
    assert "advantages.scale is missing" in message_of(kuhn_tables | {"advantages": mine})


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("opponents", {"train": {"random": 1.0}}),
        ("play", {"seats": "first"}),
        ("play", {"grouping": "mixed"}),
        ("evaluate", {"seats": "first"}),
    ],
)
def test_opponents_and_seats_have_no_effect_in_a_single_agent_environment(my_lab, section, options):
    message = message_of({"environments": {"name": f"{my_lab}.alone"}, section: options})
    assert "has no effect in an environment without opponents" in message


# -- menus


def test_menus_list_their_items_with_descriptions():
    assert dict(menu("environments")).keys() >= {"kuhn_poker", "openspiel", "tic_tac_toe"}
    opponents = dict(menu("opponents"))
    known = ("random", "pattern", "biased", "mcts", "cfr", "aggressive", "intermediate")
    assert opponents.keys() >= {*known}
    assert opponents["conservative"] == "Bets and calls with K only."
    assert [name for name, _ in menu("engines")][:1] != ["attention"]
    for folder in ("environments", "opponents", "memory", "engines", "advantages"):
        assert all(line for _, line in menu(folder))
    assert find_item("environments", "kuhn_poker") is KuhnPoker
    for folder in ("environments", "memory", "advantages"):
        assert all(find_item(folder, name) for name, _ in menu(folder))
    message = r"there is no menu 'environment' \(did you mean 'environments'\?\)"
    with pytest.raises(ConfigError, match=message):
        menu("environment")


def test_a_deleted_option_is_dropped_if_it_has_the_value_of_today_and_refused_otherwise(
    recipe_file,
):
    """Run folders of earlier versions name every option."""
    plain, text = load_recipe(recipe_file), recipe_file.read_text()
    for value, is_read in (("true", True), ("false", False), ("1", False)):
        recipe_file.write_text(f'{text}[advantages]\nname = "gigpo"\nper_position = {value}\n')
        if is_read:
            assert load_recipe(recipe_file) == plain
        else:
            with pytest.raises(ConfigError, match="per_position"):
                load_recipe(recipe_file)


def test_a_recipe_changes_the_options_of_its_base(tmp_path):
    (tmp_path / "first.toml").write_text('base = "kuhn_demo"\n[play]\ngroups = 3\n')
    (tmp_path / "second.toml").write_text('base = "first.toml"\n[play]\nmembers = 4\n')
    layers = load_layers(tmp_path / "second.toml", ["--run.seed=5"])
    assert (layers.recipe.play.groups, layers.recipe.play.members) == (3, 4)
    assert layers.recipe.run.updates == load_recipe("kuhn_demo").run.updates
    sources = [layers.sources["play", "groups"], layers.sources["play", "members"]]
    assert sources == ["base first", "recipe"]
    assert layers.sources["run", "updates"] == "base kuhn_demo"
    assert layers.sources["run", "seed"] == "command line"


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('"wrong.toml"', r"based on each other \(wrong -> wrong\)"),
        ('"other.toml"', r"based on each other \(wrong -> other -> wrong\)"),
        ('"kuhn_pokr"', r"base = 'kuhn_pokr': there is no recipe .*did you mean 'kuhn_poker'"),
        ("3", "base must be the name of a recipe"),
    ],
)
def test_a_wrong_base_gives_one_message(tmp_path, base, message):
    (tmp_path / "wrong.toml").write_text(f"base = {base}\n")
    (tmp_path / "other.toml").write_text('base = "wrong.toml"\n')
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(tmp_path / "wrong.toml")
    assert "\n" not in str(caught.value)


def test_the_recipe_of_a_run_of_an_earlier_version_is_read():
    """Written by commit 775f61b. Deleted options with their default values are ignored."""
    path = Path(__file__).parent / "golden" / "recipe_of_775f61b.toml"
    assert load_recipe(path) == load_recipe("kuhn_demo")
    with pytest.raises(ConfigError, match=r"agent\.examples is unknown"):
        load_recipe(path, ["--agent.examples=2"])


def test_another_game_drops_the_arguments_and_moves_of_the_last_one(tmp_path):
    """On the command line, in a recipe with a base, and in Python."""
    own = tmp_path / "own.toml"
    own.write_text('base = "frozen_lake"\n[environments]\ngame = "CliffWalking-v1"\n')
    lake = load_recipe("frozen_lake")
    assert lake.environments.options["arguments"]
    for other in (
        load_recipe("frozen_lake", ["--environments.game=CliffWalking-v1"]),
        load_recipe(own),
        lake.changed(environments={"game": "CliffWalking-v1"}),
    ):
        assert other.environments.options["arguments"] == ""
        assert other.environments.options["max_turns"] == 6
    same = load_recipe("frozen_lake", ["--environments.game=FrozenLake-v1"])
    assert same.environments.options["arguments"]
