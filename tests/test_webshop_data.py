"""WebShop: splits of the goals, written and damaged data files."""

import json
import random

import numpy as np
import pytest
from pydantic import ValidationError

from mage.config.errors import ConfigError
from mage.config.loading import load_recipe
from mage.environments.webshop import WebShop
from mage.environments.webshop.catalogue import Source, open_catalogue
from mage.environments.webshop.files import write_folder
from mage.environments.webshop.generate import generate
from mage.evaluation.panels import make_panel
from mage.opponents.base import Population

SHOP = WebShop(products=300, test_goals=100, dev_goals=100)


# --- Splits ---------------------------------------------------------------------------------------


def test_no_goal_of_a_split_is_in_another():
    assert_disjoint(SHOP)


def test_splits_are_disjoint_if_goals_repeat(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "cache"))
    raw = generate(60)
    for item in raw.products:
        for values in (item["customization_options"] or {}).values():
            values += [dict(value) for value in values]
    write_folder(raw, tmp_path / "shop")
    shop = WebShop(data=str(tmp_path / "shop"), test_goals=40, dev_goals=40)
    texts = [shop.catalogue().goal(place).text for place in range(shop.catalogue().goals)]
    assert len(set(texts)) < len(texts), "the point of this shop is that goals repeat"
    assert_disjoint(shop)


def assert_disjoint(shop: WebShop) -> None:
    splits = {name: shop.for_split(name) for name in ("train", "test", "ood")}
    found = {
        name: {one.goal(seed).text for seed in range(len(one.places()))}
        for name, one in splits.items()
    }
    assert not found["train"] & found["test"]
    assert not found["train"] & found["ood"]
    assert not found["test"] & found["ood"]
    assert all(found.values())


def test_the_shuffle_is_webshops():
    """As WebShop's `random.seed(233); random.shuffle(goals)`."""
    catalogue = WebShop().catalogue()
    numbers = list(range(catalogue.goals))
    random.Random(233).shuffle(numbers)
    assert catalogue.order.tolist() == numbers


def test_a_test_panel_covers_every_goal_once():
    shop = SHOP.for_split("test")
    panel = make_panel(shop, Population(), "test", size=100, seats="first")
    assert len({shop.goal(shop.episode_seed(task.seed, 0)).number for task in panel}) == 100


def test_pages_of_the_ood_split_may_be_longer():
    assert (
        SHOP.for_split("ood").start(0).view.page_limit
        > SHOP.for_split("test").start(0).view.page_limit
        == SHOP.page_limit
    )


def test_pay_is_all_or_nothing_unless_graded():
    graded = SHOP.model_copy(update={"pay": "graded"})
    assert [SHOP.reward(score) for score in (0, 0.75, 1)] == [0, 0, 10]
    assert [graded.reward(score) for score in (0, 0.75, 1)] == [0, 7.5, 10]
    assert [SHOP.outcome(score) for score in (0, 0.75, 1)] == ["lost", "lost", "won"]


# --- Data -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "cache"))
    write_folder(generate(30), tmp_path / "shop")
    return tmp_path / "shop"


def test_written_files_and_the_generator_give_the_same_catalogue(folder):
    read, made = open_catalogue(Source(str(folder))), open_catalogue(Source(products=30))
    assert [read.product(k) for k in range(30)] == [made.product(k) for k in range(30)]
    assert [read.goal(k) for k in range(read.goals)] == [made.goal(k) for k in range(made.goals)]
    assert read.search("pants for hiking", 10) == made.search("pants for hiking", 10)


def test_a_compiled_catalogue_is_mapped_not_copied(folder):
    (folder / "items_human_ins.json").unlink()  # only human goals need it
    catalogue = open_catalogue(Source(str(folder)))
    for array in (
        catalogue.records.joined,
        catalogue.index.documents,
        catalogue.index.shares,
        catalogue.order,
    ):
        assert isinstance(array.base, np.memmap)
        assert array.base.mode == "r"
        assert not array.flags.writeable


def test_without_a_writable_cache_the_catalogue_is_in_memory(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "file"))
    assert len(open_catalogue(Source(str(folder), products=20))) == 20


CHEAP = [dict(one) for one in generate(30).products]
CHEAP[3]["pricing"] = "$cheap"
DAMAGED = ("", "{", '[{"asin": "B1"', "[1, 2]", '[{"asin": "B1"}]', '{"a": 1}', "[" * 100_000, "[]")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        *(("items_shuffle.json", text, "items_shuffle.json") for text in DAMAGED),
        ("items_shuffle.json", json.dumps(CHEAP), "items_shuffle.*product 3"),
        ("items_ins_v2.json", "[]", "items_ins_v2.json"),
    ],
)
def test_damaged_data_gives_a_message_that_names_the_file(folder, name, text, told):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=told):
        WebShop(data=str(folder), test_goals=1, dev_goals=1).start(0)


def test_missing_data_gives_a_message_with_what_is_needed(tmp_path):
    with pytest.raises(ValueError, match="items_shuffle"):
        WebShop(data=str(tmp_path / "nowhere")).check_data()
    with pytest.raises(ValueError, match="must hold one file"):
        WebShop(data=str(tmp_path)).check_data()


def test_splits_without_training_goals_are_rejected():
    with pytest.raises(ValueError, match="leaves none to train on"):
        WebShop(products=20).start(0)


def test_options_without_effect_are_rejected(folder):
    with pytest.raises(ValidationError, match="no effect with data"):
        WebShop(data=str(folder), style="short")


def test_a_missing_folder_is_reported_before_options_without_effect(tmp_path):
    """The recipe sets style, which is for generated catalogues."""
    with pytest.raises(ConfigError, match="there is no folder"):
        load_recipe("webshop", [f"--environments.data={tmp_path / 'gone'}"])


def test_the_recipe_names_the_tagger():
    assert WebShop().model_dump()["tagger"] in ("spacy", "bundled")
