"""WebShop in the contract: pages, actions, splits, the expert, and what goes wrong with data; all on generated shops."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from mage.config.menus import find_item
from mage.environments.base import check, golden
from mage.environments.webshop import WebShop, pages
from mage.environments.webshop.catalogue import Source, open_catalogue, write_folder
from mage.environments.webshop.generate import generate
from mage.environments.webshop.session import WebShopState
from mage.evaluation.panels import make_panel
from mage.opponents.base import Population

GOLDEN = Path(__file__).parent / "golden" / "webshop.txt"
SHOP = WebShop(products=300, test_goals=100, dev_goals=100)
SHORT = WebShop(style="short", products=40, test_goals=20, dev_goals=10, per_page=3)


def walk(state: WebShopState, *actions: str) -> WebShopState:
    for action in actions:
        move = state.read(action)
        assert move is not None, action
        state.apply(move)
    return state


def with_options(environment: WebShop) -> WebShopState:
    """A trip whose goal asks for two options, on the page of the goal's product."""
    state = next(
        state for seed in range(200) if len((state := environment.start(seed)).goal.options) == 2
    )
    while state.page != "item":
        state.apply(str(state.expert()))
    return state


def test_keywords_list_products_as_the_file_has_them() -> None:
    """Against the raw records, read one by one."""
    raw, state = generate(300, 0, "full"), SHOP.start(3)
    known = {item["asin"]: raw.attributes[item["asin"]] for item in raw.products}
    sample = raw.products[7]
    attribute = known[sample["asin"]]["attributes"][0]
    wanted = {
        f"search[<a> {attribute}]": [
            item["asin"] for item in raw.products if attribute in known[item["asin"]]["attributes"]
        ],
        f"search[<c> {sample['category']} and more]": [
            item["asin"] for item in raw.products if item["category"] == sample["category"]
        ],
        f"search[<q> {sample['query']}]": [
            item["asin"]
            for item in raw.products
            if item["query"].lower().strip() == sample["query"].lower().strip()
        ],
        "search[<q> no such query]": [],
        "search[<a>]": [],
    }
    for action, asins in wanted.items():
        walk(state, action)
        assert list(state._hits()) == asins, action
        assert [value for value in state.clickables() if value.upper() in asins] == [
            asin.lower() for asin in asins[:10]
        ]
    assert len(wanted[f"search[<a> {attribute}]"]) > 1


def test_the_keyword_for_random_products_gives_a_goal_the_same_fifty_every_time() -> None:
    first, again, other = (walk(SHOP.start(seed), "search[<r>]")._hits() for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) == 50
    assert (
        walk(SHORT.start(0), "search[<r> whatever]")._hits()
        == walk(SHORT.start(0), "search[<r>]")._hits()
    )


def test_goals_with_rare_attributes_are_drawn_as_often_as_their_weight_says() -> None:
    """Weights worked out again from the goals' own attributes; 6,000 draws, each share within five standard errors."""
    world = SHOP.model_copy(update={"draw": "weighted"})
    catalogue, places = world.catalogue(), world.places()
    goals = [catalogue.goal(place) for place in range(catalogue.goals)]
    asked = Counter(attribute for goal in goals for attribute in goal.attributes)
    weights = [
        sum(1 / asked[attribute] for attribute in goal.attributes) / len(goal.attributes)
        for goal in goals
    ]
    assert np.allclose(catalogue.weights(places), weights[places.start : places.stop])
    found = Counter(world._weighted(seed) for seed in range(6000))
    total = sum(weights[place] for place in places)
    for at, place in enumerate(places):
        share = weights[place] / total
        assert abs(found[at] - 6000 * share) < 5 * (6000 * share) ** 0.5 + 5
    assert world.strata() == 1
    assert world.for_split("test").goal(5) == SHOP.for_split("test").goal(5), (
        "held-out goals are all measured alike"
    )


def test_the_menu_finds_it_by_name() -> None:
    assert find_item("environments", "webshop") is WebShop


@pytest.mark.parametrize(
    "environment",
    [
        WebShop(),
        SHORT,
        WebShop(products=300, test_goals=9, dev_goals=9, observation="text", page_limit=400),
    ],
)
def test_it_keeps_the_contract(environment: WebShop) -> None:
    assert check(environment, games=5) == []


def test_the_play_through_is_as_recorded() -> None:
    assert golden(WebShop()) == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize(
    "environment",
    [SHOP, SHORT, WebShop(products=300, goals="human", test_goals=50, dev_goals=20)],
    ids=["full", "short", "human"],
)
@pytest.mark.parametrize("wander", [0, 6])
def test_the_expert_gets_full_marks_from_wherever_it_starts(
    environment: WebShop, wander: int
) -> None:
    for seed in range(8):
        state, rng = environment.for_split("test").start(seed), random.Random(seed)
        for _ in range(wander):
            state.apply(rng.choice([move for move in state.legal() if move != "click[buy now]"]))
        for _ in range(environment.max_turns):
            if (move := state.expert()) is None:
                break
            assert state.read(move) == move
            state.apply(move)
        assert state.scores() == (1.0,), state.recap(0)


def test_pages_read_as_in_webshop() -> None:
    """The wording is that of WebShop's templates as its text modes render them."""
    state = with_options(SHOP.model_copy(update={"observation": "text"}))
    goal, product = state.goal, state.catalogue.find(state.goal.asin)
    first = SHOP.model_copy(update={"observation": "text"}).start(3)
    assert first.observe(0) == f"WebShop [SEP] Instruction: [SEP] {first.goal.text} [SEP] Search"
    parts = state.observe(0).split(" [SEP] ")
    assert parts[:4] == ["Instruction:", goal.text, "Back to Search", "< Prev"]
    assert parts[-7:] == [
        product.title,
        f"Price: {product.price_tag}",
        "Rating: N.A.",
        "Description",
        "Features",
        "Reviews",
        "Buy Now",
    ]
    assert walk(state, "click[< Prev]").observe(0).split(" [SEP] ")[2:5] == [
        "Back to Search",
        "Page 1 (Total results: 50)",
        "Next >",
    ]


def test_rich_pages_mark_buttons_and_what_was_clicked() -> None:
    state = with_options(SHOP)
    name, value = state.goal.options[0]
    assert f"  [button] {value} [button_]" in state.observe(0).splitlines()
    walk(state, f"click[{value.upper()}]")
    assert state.options == {name: value}
    assert state.observe(0).splitlines()[0] == f"You have clicked {value}."
    assert f"  [clicked button] {value} [clicked button_]" in state.observe(0).splitlines()
    walk(state, "click[prev]")
    assert f"[clicked button] {state.goal.asin} [clicked button_]" in state.observe(0).splitlines()


def test_options_survive_sub_pages_and_are_forgotten_on_the_way_back_to_results() -> None:
    state = with_options(SHOP)
    walk(state, f"click[{state.goal.options[0][1]}]", "click[Description]")
    assert state.clickables() == ["back to search", "< prev"]
    walk(state, "click[< prev]")
    assert len(state.options) == 1
    walk(state, "click[< prev]")
    assert state.options == {}


def test_next_is_always_offered_and_leads_to_empty_pages() -> None:
    state = walk(SHOP.start(0), "search[shirt]", *["click[next >]"] * 6)
    assert state.clickables() == ["back to search", "< prev", "next >"]
    assert "Page 7 (Total results: " in state.observe(0)
    assert "Total results: 0" in walk(state, "search[xyzzy]").observe(0)


NO_ACTIONS = [
    "",
    "buy",
    "search",
    "search[]",
    "search[ ]",
    "click[search]",
    "click[]",
    "click[Buy Now]",
    "go[home]",
    "search[a\x00b]",
    "search[a\nb]",
]


@pytest.mark.parametrize("written", NO_ACTIONS)
def test_what_is_no_action_is_illegal(written: str) -> None:
    assert SHOP.start(0).read(written) is None


def test_overlong_actions_are_illegal_and_quick() -> None:
    for text in ("search[" + "a" * 100_000 + "]", "[" * 100_000, "click[" * 20_000):
        assert SHOP.start(0).read(text) is None


@given(some.text(max_size=60))
def test_no_reply_breaks_a_trip(text: str) -> None:
    state = SHORT.start(1)
    for written in (f"search[{text}]", text, f"click[{text}]"):
        if (move := state.read(written)) is not None:
            state.apply(move)
            assert state.observe(0)


def test_actions_are_read_whatever_their_case() -> None:
    assert SHOP.start(0).read(" Search[ Red  Shoes ] ") == "search[red shoes]"
    state = walk(SHOP.start(0), "search[shirt]")
    assert (
        state.read(f"CLICK[{state.clickables()[-1].upper()}]") == f"click[{state.clickables()[-1]}]"
    )
    assert state.read("click[Next >]") == "click[next >]"


# --- Splits -----------------------------------------------------------------------------------------------------------


def test_no_goal_of_a_split_is_in_another() -> None:
    assert_disjoint(SHOP)


def test_no_goal_leaks_where_goals_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "cache"))
    raw = generate(60, seed=5)
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


def test_the_shuffle_is_webshops() -> None:
    """`random.seed(233); random.shuffle(goals)`, so the first 500 goals of a catalogue are its published test goals."""
    catalogue = WebShop().catalogue()
    numbers = list(range(catalogue.goals))
    random.Random(233).shuffle(numbers)
    assert catalogue.order.tolist() == numbers


def test_a_panel_of_the_test_split_is_its_goals_each_once() -> None:
    shop = SHOP.for_split("test")
    panel = make_panel(shop, Population(), "test", size=100, seats="first")
    assert len({shop.goal(shop.episode_seed(task.seed, 0)).number for task in panel}) == 100


def test_pages_of_the_ood_split_may_be_longer() -> None:
    assert (
        SHOP.for_split("ood").page_limit_now
        > SHOP.for_split("test").page_limit_now
        == SHOP.page_limit
    )


def test_pay_is_all_or_nothing_unless_graded() -> None:
    graded = SHOP.model_copy(update={"pay": "graded"})
    assert [SHOP.reward(score) for score in (0, 0.75, 1)] == [0, 0, 10]
    assert [graded.reward(score) for score in (0, 0.75, 1)] == [0, 7.5, 10]
    assert [SHOP.outcome(score) for score in (0, 0.75, 1)] == ["lost", "lost", "won"]


# --- Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("limit", [200, 500, 3000])
def test_a_long_page_is_cut_and_says_so(mode: pages.Mode, limit: int) -> None:
    pieces = [
        pages.Piece("Instruction:"),
        pages.Piece("Find me a hat", fixed=True),
        pages.Piece("size"),
    ]
    pieces += [pages.Piece(f"value {k}", "option", clicked=k == 500) for k in range(1000)]
    pieces += [pages.Piece("word " * 5000), pages.Piece("Buy Now", "button")]
    page = pages.render(pieces, mode, limit)
    assert len(page) <= limit
    assert "Find me a hat" in page
    assert "more values)" in page or "characters)" in page
    if limit > 200:
        assert "Buy Now" in page
        assert "value 500" in page


def test_every_page_of_random_trips_is_within_its_limit() -> None:
    shop = SHOP.model_copy(update={"page_limit": 600})
    for seed in range(6):
        state, rng = shop.start(seed), random.Random(seed)
        while state.turn() is not None:
            assert len(state.observe(0)) <= 600
            state.apply(rng.choice(state.legal()))


# --- Data -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "cache"))
    write_folder(generate(30, seed=2), tmp_path / "shop")
    return tmp_path / "shop"


def test_a_folder_of_files_and_the_generator_give_the_same_shop(folder: Path) -> None:
    read, made = open_catalogue(Source(str(folder))), open_catalogue(Source(products=30, seed=2))
    assert [read.product(k) for k in range(30)] == [made.product(k) for k in range(30)]
    assert [read.goal(k) for k in range(read.goals)] == [made.goal(k) for k in range(made.goals)]
    assert read.search("pants for hiking", 10) == made.search("pants for hiking", 10)


def test_a_compiled_catalogue_is_mapped_not_copied(folder: Path) -> None:
    (folder / "items_human_ins.json").unlink()  # only human goals need it
    catalogue = open_catalogue(Source(str(folder)))
    for array in (
        catalogue.records.joined,
        catalogue.index.documents,
        catalogue.index.shares,
        catalogue.order,
    ):
        assert isinstance(array, np.memmap)
        assert array.mode == "r"


def test_without_a_place_to_write_the_catalogue_is_kept_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGE_CACHE", str(tmp_path / "file"))
    assert len(open_catalogue(Source(str(folder), products=20))) == 20


def damage(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match="items_") as caught:
        WebShop(data=str(folder), test_goals=1, dev_goals=1).start(0)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", '[{"asin": "B1"', "[1, 2]", '[{"asin": "B1"}]', '{"a": 1}', "[" * 100_000, "[]"],
)
def test_damaged_products_are_one_message_that_names_the_file(folder: Path, text: str) -> None:
    assert "items_shuffle.json" in damage(folder, "items_shuffle.json", text)


def test_damaged_attributes_are_one_message_that_names_the_file(folder: Path) -> None:
    assert "items_ins_v2.json" in damage(folder, "items_ins_v2.json", "[]")


def test_a_price_that_is_none_names_the_product(folder: Path) -> None:
    products = json.loads((folder / "items_shuffle.json").read_text())
    products[3]["pricing"] = "$cheap"
    assert "product 3" in damage(folder, "items_shuffle.json", json.dumps(products))


def test_missing_data_say_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="items_shuffle"):
        WebShop(data=str(tmp_path / "nowhere"))
    with pytest.raises(ValidationError, match="must hold one file"):
        WebShop(data=str(tmp_path))


def test_splits_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(ValueError, match="leaves none to train on"):
        WebShop(products=20).start(0)


def test_options_without_effect_are_refused(folder: Path) -> None:
    with pytest.raises(ValidationError, match="no effect with data"):
        WebShop(data=str(folder), style="short")


def test_the_recipe_says_which_tagger_judged() -> None:
    assert WebShop().model_dump()["tagger"] in ("spacy", "bundled")
