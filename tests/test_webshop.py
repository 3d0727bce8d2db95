"""WebShop on generated catalogues: pages, actions, the expert, page limits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mage.environments.base import check
from mage.environments.webshop import WebShop, pages
from mage.environments.webshop.session import WebShopState

SHOP = WebShop(products=300, test_goals=100, dev_goals=100)
SHORT = WebShop(style="short", products=40, test_goals=20, dev_goals=10, per_page=3)


def walk(state: WebShopState, *actions: str) -> WebShopState:
    for action in actions:
        move = state.read(action)
        assert move is not None, action
        state.apply(move)
    return state


def with_options(environment: WebShop) -> WebShopState:
    """A state on the page of the goal's product; the goal asks for two options."""
    state = next(
        state for seed in range(200) if len((state := environment.start(seed)).goal.options) == 2
    )
    while state.page != "item":
        state.apply(str(state.expert()))
    return state


@pytest.mark.parametrize(
    "environment",
    [
        WebShop(),
        SHORT,
        WebShop(products=300, test_goals=9, dev_goals=9, observation="text", page_limit=400),
    ],
)
def test_it_keeps_the_contract(environment):
    assert check(environment, games=5) == []


def shopper(**changes):
    options = {"products": 1000, "test_goals": 400, "dev_goals": 100, "max_turns": 40} | changes
    return WebShop(expert="shopper", **options).for_split("test")


def go_shopping(state, turns=40):
    """The products that the expert opens, in order, in at most `turns` turns."""
    opened = []
    while (move := state.expert()) is not None and len(state.steps) < turns:
        state.apply(move)
        if state.page == "item" and state.asin not in opened:
            opened.append(state.asin)
    return opened


def fits(state, asin):
    product = state.catalogue.find(asin)
    chosen = all(value in product.options.get(name, ()) for name, value in state.goal.options)
    return chosen and product.price <= state.goal.price_upper


def test_the_shopper_buys_the_first_result_that_has_every_option_at_the_price():
    shop, returned, passed_over = shopper(), 0, 0
    for seed in range(120):
        state = shop.start(seed)
        opened = go_shopping(state)
        hits = state.catalogue.search(state.words, 50)
        skipped = [asin for asin in hits[: hits.index(opened[-1])] if asin not in opened]
        assert sorted(opened, key=hits.index) == opened, "results are opened in order"
        assert not any(fits(state, asin) for asin in skipped)
        assert [fits(state, asin) for asin in opened] == [False] * (len(opened) - 1) + [True]
        assert state.asin == opened[-1]
        assert state.page == "done"
        returned += len(opened) > 1
        passed_over += len(skipped)
    assert returned >= 3, "some first results do not fit"
    assert passed_over >= 3, "some results cost too much"


def test_the_shopper_buys_nothing_that_does_not_fit():
    shop = shopper(max_turns=6)
    for seed in range(40):
        state = shop.start(seed)
        go_shopping(state, turns=6)
        assert state.reward is None or fits(state, state.asin)


def test_the_shopper_passes_over_what_past_episodes_have_left_or_bought_in_vain():
    shop, repaired, lost = shopper(), 0, 0
    for seed in range(200):
        first, second = shop.start(seed), shop.start(seed)
        opened = go_shopping(first)
        second.remember([first])
        again = go_shopping(second)
        assert not set(again) & set(opened[:-1])
        right = first.scores() == (1.0,)
        assert (opened[-1] in again) == right, "only a right purchase is made again"
        lost += not right
        repaired += not right and second.scores() == (1.0,)
    assert lost >= 3
    assert repaired > 0


def test_a_wrong_purchase_without_all_options_says_nothing_against_the_product():
    shop = shopper()
    state = next(state for state in map(shop.start, range(40)) if state.goal.options)
    for move in ("search[shoes]", f"click[{state.catalogue.search('shoes', 1)[0].lower()}]"):
        state.apply(move)
    state.apply("click[buy now]")
    later = shop.start(0)
    later.remember([state])
    assert state.reward.score < 1
    assert later.tried == set()


def test_the_expert_of_the_demonstrations_does_not_change_the_tasks():
    assert SHOP.digest() == SHOP.model_copy(update={"expert": "shopper"}).digest()


@pytest.mark.parametrize(
    "environment",
    [SHOP, SHORT, WebShop(products=300, goals="human", test_goals=50, dev_goals=20)],
    ids=["full", "short", "human"],
)
@pytest.mark.parametrize("wander", [0, 6])
def test_the_expert_gets_full_score_from_any_page(environment, wander):
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


def test_pages_have_webshops_wording():
    """The wording is that of WebShop's templates in its text modes."""
    plain = SHOP.model_copy(update={"observation": "text", "list_actions": False})
    state = with_options(plain)
    goal, product = state.goal, state.catalogue.find(state.goal.asin)
    first = plain.start(3)
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


def test_a_chosen_option_is_visible_in_plain_text_pages():
    state = with_options(SHOP.model_copy(update={"observation": "text"}))
    value = state.goal.options[0][1]
    before = state.observe(0)
    walk(state, f"click[{value}]")
    assert state.observe(0) == f"You have clicked {value}. [SEP] {before}"


@pytest.mark.parametrize("limit", [400, 3000])
def test_possible_actions_are_listed_below_the_page(limit):
    state = with_options(SHOP.model_copy(update={"page_limit": limit}))
    line = state.observe(0).splitlines()[-1]
    assert line.startswith("Actions: search[words], click[back to search], click[prev], ")
    listed = line.removeprefix("Actions: search[words], ").split(" (+")[0].split(", click[")
    clicks = [move for move in state.legal() if move.startswith("click")]
    assert [f"click[{one}".replace("click[click[", "click[") for one in listed] == clicks[
        : len(listed)
    ]
    assert ("more)" in line) == (len(listed) < len(clicks))
    assert len(state.observe(0)) <= limit
    assert len(listed) == len(clicks) or limit == 400


def test_a_recap_has_pages_prices_and_the_parts_of_the_score():
    """A goal with two options; one of them is chosen, so the score misses one point."""
    state = with_options(SHOP)
    product, value = state.catalogue.find(state.goal.asin), state.goal.options[0][1]
    walk(state, "click[features]", "click[prev]", f"click[{value}]", "click[buy now]")
    task, *lines = state.recap(0).splitlines()
    assert task == f"Task: {state.goal.text}."
    results = next(line for line in lines if " results: " in line)
    assert product.price_tag in results
    assert all(f"click[{word}]" in "".join(lines) for word in ("features", "prev", value))
    wanted = len(state.goal.attributes)
    score = (wanted + 2) / (wanted + 3)
    assert lines[-1].endswith(
        f"({state.goal.options[0][0]}: {value}). Score {score:.2f} of 1: type 1, attributes "
        f"{wanted} of {wanted}, options 1 of 2, price within the limit."
    )


def test_a_recap_keeps_its_limit_and_names_every_action():
    state, rng = SHOP.model_copy(update={"recap_limit": 900}).start(2), random.Random(4)
    for _ in range(12):
        state.apply(rng.choice([move for move in state.legal() if move != "click[buy now]"]))
    recap = state.recap(0)
    assert len(recap) < 900 + 12 * 40
    assert [f"{n}. " in recap for n in range(1, 13)] == [True] * 12
    assert recap.endswith("You bought nothing. Score 0 of 1.")


def test_rich_pages_mark_buttons_and_clicked_options():
    state = with_options(SHOP)
    name, value = state.goal.options[0]
    assert f"  [button] {value} [button_]" in state.observe(0).splitlines()
    walk(state, f"click[{value.upper()}]")
    assert state.options == {name: value}
    assert state.observe(0).splitlines()[0] == f"You have clicked {value}."
    assert f"  [clicked button] {value} [clicked button_]" in state.observe(0).splitlines()
    walk(state, "click[prev]")
    assert f"[clicked button] {state.goal.asin} [clicked button_]" in state.observe(0).splitlines()


def test_options_are_kept_on_sub_pages_and_cleared_on_results():
    state = with_options(SHOP)
    walk(state, f"click[{state.goal.options[0][1]}]", "click[Description]")
    assert state.clickables() == ["back to search", "< prev"]
    walk(state, "click[< prev]")
    assert len(state.options) == 1
    walk(state, "click[< prev]")
    assert state.options == {}


def test_next_is_always_offered_and_leads_to_empty_pages():
    state = walk(SHOP.start(0), "search[shirt]", *["click[next >]"] * 6)
    assert state.clickables() == ["back to search", "< prev", "next >"]
    assert "Page 7 (Total results: " in state.observe(0)
    assert "Total results: 0" in walk(state, "search[xyzzy]").observe(0)


NO_ACTIONS = [
    *("", "buy", "search", "search[]", "search[ ]", "click[search]", "click[]", "click[Buy Now]"),
    *("go[home]", "search[a\x00b]", "search[a\nb]"),
]


@pytest.mark.parametrize("written", NO_ACTIONS)
def test_other_texts_are_illegal(written):
    assert SHOP.start(0).read(written) is None


def test_overlong_actions_are_illegal():
    for text in ("search[" + "a" * 100_000 + "]", "[" * 100_000, "click[" * 20_000):
        assert SHOP.start(0).read(text) is None


@given(some.text(max_size=60))
def test_no_reply_raises(text):
    state = SHORT.start(1)
    for written in (f"search[{text}]", text, f"click[{text}]"):
        if (move := state.read(written)) is not None:
            state.apply(move)
            assert state.observe(0)


def test_actions_ignore_case():
    assert SHOP.start(0).read(" Search[ Red  Shoes ] ") == "search[red shoes]"
    state = walk(SHOP.start(0), "search[shirt]")
    assert (
        state.read(f"CLICK[{state.clickables()[-1].upper()}]") == f"click[{state.clickables()[-1]}]"
    )
    assert state.read("click[Next >]") == "click[next >]"


# --- Bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["text", "text_rich"])
@pytest.mark.parametrize("limit", [200, 500, 3000])
def test_a_long_page_is_cut_and_marked(mode, limit):
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


def test_every_page_is_within_its_limit():
    shop = SHOP.model_copy(update={"page_limit": 600})
    for seed in range(6):
        state, rng = shop.start(seed), random.Random(seed)
        while state.turn() is not None:
            assert len(state.observe(0)) <= 600
            state.apply(rng.choice(state.legal()))
