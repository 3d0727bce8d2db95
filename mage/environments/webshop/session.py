"""One shopping episode: the open page, its clickables, chosen options, and the expert.

`search[words]` works on every page, as in WebShop. Clicks are written without `<`, which would open
a tag in the agent's reply: click[prev].
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from mage.environments.base import State
from mage.environments.webshop import pages
from mage.environments.webshop.catalogue import Catalogue
from mage.environments.webshop.products import Goal, Product
from mage.environments.webshop.recap import (
    Step,
    describe_item,
    describe_purchase,
    describe_results,
    describe_text,
    write_recap,
)
from mage.environments.webshop.reward import Reward, judge

HITS = 50
LONGEST = 400  # characters of an action; longer ones are not legal
_ACTION = re.compile(r"(search|click)\s*\[(.*)\]", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PRICE = ", and price lower than"
_MORE = " (+{:,} more)"  # actions that are not listed


@dataclass(frozen=True, slots=True)
class ShopView:
    """The environment's options that a session needs."""

    page_limit: int
    tagger: Literal["spacy", "bundled"]
    observation: pages.Mode
    per_page: int
    list_actions: bool
    recap_limit: int
    anchor: Literal["state", "text"]
    score_parts: bool
    expert: Literal["goal", "shopper"]
    max_turns: int


class WebShopState(State):
    """`page` is `search`, `results`, `item`, the name of a sub page, or `done`."""

    def __init__(self, view: ShopView, catalogue: Catalogue, goal: Goal) -> None:
        self.view, self.catalogue, self.goal = view, catalogue, goal
        self.page, self.number = "search", 1
        self.words, self.asin = "", ""
        self.options: dict[str, str] = {}
        self.seen: set[str] = set()
        self.opened: set[str] = set()  # products, in the whole episode
        self.left: set[str] = set()  # products that were left for the results
        self.tried: set[str] = set()  # products that were left or bought in vain in past episodes
        self.steps: list[Step] = []
        self.reward: Reward | None = None

    # --- State interface ---

    def turn(self) -> int | None:
        return None if self.page == "done" else 0

    def legal(self) -> tuple[str, ...]:
        clicks = (f"click[{_word(value)}]" for value in self.clickables() if value != "search")
        return tuple(dict.fromkeys((*(f"search[{words}]" for words in self._queries), *clicks)))

    def read(self, written: str) -> str | None:
        found = None
        if len(written) <= LONGEST and not _CONTROL.search(written):
            found = _ACTION.fullmatch(written.strip())
        if found is None or not (words := " ".join(found[2].lower().split())):
            return None
        if found[1].lower() == "search":
            return f"search[{words}]"
        value = self._clickable(words)
        return None if value is None else f"click[{_word(value)}]"

    def apply(self, action: str) -> None:
        found = _ACTION.fullmatch(action)
        assert found is not None, f"{action!r} is not a legal move"
        assert self.page != "done", "nothing can be done after the purchase"
        before = self.page
        if found[1] == "search":
            self._open_results(found[2], 1)
        else:
            value = self._clickable(found[2])
            assert value is not None, f"{action!r} is not a legal move"
            self._click(value)
        self.steps.append((action, "" if before == self.page == "item" else self._describe_page()))

    @property
    def actions(self) -> list[str]:
        return [action for action, _ in self.steps]

    def observe(self, seat: int) -> str:
        """The page, and the possible actions; both together keep the limit of a page."""
        mode, limit = self.view.observation, self.view.page_limit
        if not self.view.list_actions:
            return pages.render(self.pieces(), mode, limit)
        actions = self._list_actions(limit // 2)
        return f"{pages.render(self.pieces(), mode, limit - len(actions) - 1)}\n{actions}"

    def anchor(self, seat: int) -> str:
        if self.view.anchor == "text":
            # The published text does not say which options are chosen.
            plain = [piece._replace(clicked=False) for piece in self.pieces()]
            return pages.render(plain, self.view.observation, sys.maxsize)
        chosen = ", ".join(f"{name}: {value}" for name, value in sorted(self.options.items()))
        parts = (self.page, self.words and f"{self.words} page {self.number}", self.asin, chosen)
        return f"goal {self.goal.number} | {' | '.join(part for part in parts if part)}"

    def scores(self) -> tuple[float, ...]:
        return (self.reward.score if self.reward else 0.0,)

    def recap(self, seat: int) -> str:
        result = "You bought nothing. Score 0 of 1."
        if self.reward is not None:
            result = describe_purchase(
                self._product(), self.options, self.reward, self.goal, self.view.score_parts
            )
        return write_recap(self.goal.text, self.steps, result, self.view.recap_limit)

    def expert(self) -> str | None:
        """Search for the goal's product, open it, choose the options, buy it."""
        if self.page == "done":
            return None
        if self.view.expert == "shopper":
            return self._shop()
        if self.asin == self.goal.asin and self.page != "results":
            return f"click[{_word(self._next_on_item())}]"
        if self.page == "results" and (step := self._next_on_results()):
            return f"click[{_word(step)}]"
        return f"search[{self._best_query}]"

    def remember(self, past: Sequence[State]) -> None:
        """The shopper passes over products that past episodes have tried."""
        for state in past:
            assert isinstance(state, WebShopState), "past episodes are of the same world"
            self.tried |= state.left | state.bought_in_vain()

    def bought_in_vain(self) -> set[str]:
        """The product of a wrong purchase that had all options: another product is meant."""
        if self.reward is None or self.reward.score == 1:
            return set()
        wanted = {option[1] for option in self.goal.options if isinstance(option, tuple)}
        return {self.asin} if wanted <= set(self.options.values()) else set()

    # --- Pages ---

    def pieces(self) -> list[pages.Piece]:
        """The open page, uncut."""
        text = self.goal.text
        if self.page == "search":
            return pages.search_page(text)
        if self.page == "results":
            return pages.results_page(
                text,
                self.number,
                len(self._hits()),
                [self.catalogue.find(asin) for asin in self._shown()],
                self.seen,
            )
        if self.page == "done":
            return pages.final_page(
                self.asin, json.dumps(self.options, sort_keys=True), self.scores()[0]
            )
        if self.page == "item":
            return pages.item_page(text, self._product(), self.options)
        return pages.sub_page(text, self._product(), self.page)

    def clickables(self) -> list[str]:
        """The clickable elements in WebShop's order and wording."""
        if self.page == "done":
            return []
        if self.page == "search":
            return ["search"]
        back, previous = pages.BACK.lower(), pages.PREVIOUS.lower()
        if self.page == "results":
            return [
                back,
                *([previous] if self.number > 1 else []),
                pages.NEXT.lower(),
                *(asin.lower() for asin in self._shown()),
            ]
        if self.page != "item":
            return [back, previous]
        values = (value for values in self._product().options.values() for value in values)
        listed = (back, previous, *pages.SUB_PAGES, pages.BUY.lower(), *values)
        return list(dict.fromkeys(listed))

    def _clickable(self, words: str) -> str | None:
        """The clickable that is meant, as written by WebShop or by `legal`."""
        options = [value for value in self.clickables() if value != "search"]
        if words in options:
            return words
        return next((value for value in options if _word(value) == _word(words)), None)

    def _click(self, value: str) -> None:
        if value == pages.BUY.lower():
            self._buy()
        elif value == pages.BACK.lower():
            self.page, self.words, self.number, self.asin = "search", "", 1, ""
            self.options, self.seen = {}, set()
        elif value in (pages.PREVIOUS.lower(), pages.NEXT.lower()):
            self._turn_page(1 if value == pages.NEXT.lower() else -1)
        elif self.page == "results":
            self.page, self.asin = "item", value.upper()
            self.seen.add(self.asin)
            self.opened.add(self.asin)
        elif value in pages.SUB_PAGES:
            self.page = value
        else:  # if two options have this value, WebShop takes the last
            self.options[
                [name for name, values in self._product().options.items() if value in values][-1]
            ] = value

    def _turn_page(self, step: int) -> None:
        if self.page == "results":
            self._open_results(self.words, self.number + step)
        elif self.page == "item":
            self.left.add(self.asin)
            self._open_results(self.words, self.number)
        else:
            self.page = "item"

    def _open_results(self, words: str, number: int) -> None:
        """Open a results page. This clears the chosen options, as in WebShop."""
        self.page, self.words, self.number = "results", words, number
        self.asin, self.options = "", {}

    def _buy(self) -> None:
        wanted = self.catalogue.find(self.goal.asin)
        self.reward = judge(
            self._product(), self.options.values(), self.goal, wanted, self.view.tagger
        )
        self.page = "done"

    def _product(self) -> Product:
        return self.catalogue.find(self.asin)

    def _hits(self) -> tuple[str, ...]:
        return self.catalogue.search(self.words, HITS)

    def _shown(self) -> tuple[str, ...]:
        size = self.view.per_page
        return self._hits()[(self.number - 1) * size : self.number * size]

    # --- Texts ---

    @cached_property
    def _queries(self) -> tuple[str, ...]:
        """Typical queries: everything except the price, and the product kind alone."""
        asked = _plain(
            re.sub(
                r"^(find me|i am looking for|i need|i want)\s+",
                "",
                self.goal.text.lower().split(_PRICE)[0],
            )
        )[:200].strip()
        kind = re.split(r" (?:with|for) ", asked)[0].strip()
        return tuple(dict.fromkeys(words for words in (asked, kind) if words)) or ("a",)

    def _list_actions(self, limit: int) -> str:
        """The actions that are possible now; if they are too long, the first ones."""
        clicks = [f"click[{_word(value)}]" for value in self.clickables() if value != "search"]
        line, shown = "Actions: search[words]", 0
        for click in clicks:
            if len(line) + len(click) + len(_MORE.format(999)) > limit:
                break
            line, shown = f"{line}, {click}", shown + 1
        return line if shown == len(clicks) else line + _MORE.format(len(clicks) - shown)

    def _describe_page(self) -> str:
        """The open page for the recap; empty for the search page."""
        if self.page == "search":
            return ""
        if self.page == "results":
            shown = [self.catalogue.find(asin) for asin in self._shown()]
            return describe_results(self.number, len(self._hits()), shown)
        if self.page == "item":
            return describe_item(self._product())
        return "" if self.page == "done" else describe_text(self.page, self._product())

    # --- Expert ---

    def _next_on_item(self) -> str:
        """The next missing option, else buy. From sub pages go back to the product."""
        if self.page != "item":
            return pages.PREVIOUS.lower()
        for option in self.goal.options:
            values = [option[1]] if isinstance(option, tuple) else _meant(option, self._product())
            missing = [value for value in values if value not in self.options.values()]
            if len(missing) == len(values) and missing and missing[0] in self.clickables():
                return missing[0]
        return pages.BUY.lower()

    def _shop(self) -> str:
        """The next action of a shopper, who knows only what the pages and the memory say.

        It opens the results in order, without those that cost too much and those that it has tried
        in this or a past episode, goes back from a product that lacks an option or costs too much,
        and buys the first that fits. It never buys what does not fit: such purchases are not right.
        """
        if self.page == "search":
            return f"search[{self._queries[0]}]"
        if self.page == "results":
            left = [asin for asin in self._shown() if self._may_fit(asin)]
            return f"click[{_word((left or [pages.NEXT])[0].lower())}]"
        if self.page == "item" and (self.asin in self.tried or not self._fits()):
            return f"click[{_word(pages.PREVIOUS.lower())}]"
        return f"click[{_word(self._next_on_item())}]"

    def _may_fit(self, asin: str) -> bool:
        """Whether a result was not tried yet and its lowest shown price is low enough."""
        if asin in self.opened | self.tried:
            return False
        shown = re.search(r"\d[\d,]*\.?\d*", self.catalogue.find(asin).price_tag)
        return not shown or float(shown[0].replace(",", "")) <= self.goal.price_upper

    def _fits(self) -> bool:
        """Whether the open product has all options that are asked for, at the price."""
        product = self._product()
        values = {value for values in product.options.values() for value in values}
        asked = (
            option[1] in values if isinstance(option, tuple) else bool(_meant(option, product))
            for option in self.goal.options
        )
        return all(asked) and product.price <= self.goal.price_upper

    def _next_on_results(self) -> str | None:
        hits, size = self._hits(), self.view.per_page
        if self.goal.asin not in hits:
            return None
        page = hits.index(self.goal.asin) // size + 1
        if page == self.number:
            return self.goal.asin.lower()
        return (pages.NEXT if page > self.number else pages.PREVIOUS).lower()

    @cached_property
    def _best_query(self) -> str:
        """The first query that shows the product on page 1, else the best-ranked one.

        Queries from the instruction come first, because an agent can write them.
        """
        product = self.catalogue.find(self.goal.asin)
        texts = (
            *self._queries,
            product.title,
            f"{product.title} {product.bullets[0] if product.bullets else ''}",
            product.description,
            self.goal.text,
        )
        queries = [
            words for text in texts if (words := _plain(text.lower())[: LONGEST - 10].strip())
        ] or ["a"]
        return min(queries, key=self._rank)

    def _rank(self, words: str) -> int:
        hits = self.catalogue.search(words, HITS)
        return hits.index(self.goal.asin) // self.view.per_page if self.goal.asin in hits else HITS


def _meant(wanted: str, product: Product) -> list[str]:
    """The option values that a human word may mean, best first."""
    values = [value for values in product.options.values() for value in values]
    return sorted(
        (value for value in values if wanted in value or value in wanted),
        key=lambda value: abs(len(value) - len(wanted)),
    )


@lru_cache(maxsize=4096)
def _word(value: str) -> str:
    """A clickable without `<`: `< prev` becomes prev."""
    return " ".join(value.replace("<", " ").split())


def _plain(text: str) -> str:
    """Words and simple punctuation in one line."""
    return " ".join(re.sub(r"[^\w\s.:,'&%\"-]", " ", text).split())
