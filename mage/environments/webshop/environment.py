"""The WebShop environment: options, splits and rules."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from mage.config.errors import UserError
from mage.environments.base import SingleAgentEnvironment, turn_limit
from mage.environments.webshop.catalogue import Catalogue, GoalKind, Source, open_catalogue
from mage.environments.webshop.files import data_folder, find_files
from mage.environments.webshop.generate import Style
from mage.environments.webshop.nouns import MODEL, Tagger, has_spacy
from mage.environments.webshop.pages import Mode
from mage.environments.webshop.products import Goal
from mage.environments.webshop.session import ShopView, WebShopState
from mage.environments.webshop.wording import WebShopWording
from mage.types import Outcome, Split

# Panels cover splits up to this size evenly: 500 test tasks are the 500 test goals.
_STRATA = 1_000
SHORTEST_PAGE = 200  # characters of a page with a limit
NO_LIMIT = 10**9  # characters
_RULES = (
    "You shop in a web store. Each task asks for a product with certain attributes, options "
    "and a price limit. "
    "Two actions: search[words] looks for products; click[text] presses something on the "
    "page: a product's number, an option's value, "
    "or a button such as Next >, < Prev, Back to Search, Description, Features, Buy Now. "
    "Results show ten products a page. "
    "Choose the options asked for on the product's page, then click[Buy Now]: that ends the "
    "trip. The score, from 0 to 1, is how well your purchase fits."
)


class WebShop(SingleAgentEnvironment):
    """Find and buy a product in a web store: search, results, product pages, options."""

    name: ClassVar[str] = "webshop"
    presentation: ClassVar[tuple[str, ...]] = (
        *("observation", "page_limit", "long_page_limit", "list_actions"),
        *("recap_limit", "score_parts", "pay", "expert"),
    )
    settled: ClassVar[Mapping[str, Any]] = {"catalogue_seed": 0, "draw": "evenly"}

    max_turns: int = turn_limit(12)
    data: str = Field(
        "",
        description="folder with WebShop's items_shuffle*.json and items_ins_v2*.json; "
        "official = the folder in WEBSHOP_DATA; empty = a generated catalogue",
    )
    products: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="products of the generated catalogue (0 = 1,000), or how many of the data "
        "to use (0 = all)",
    )
    style: Style = Field(
        "full",
        description="generated products: full = as long as real ones, short = two-word titles "
        "for tiny models",
    )
    goals: GoalKind = Field(
        "synthetic",
        description="synthetic = made from attributes and options; human = written by people",
    )
    test_goals: int = Field(
        500, ge=1, description="goals of the test split: the first ones of the fixed shuffle"
    )
    ood: Literal["goals", "products"] = Field(
        "goals",
        description="goals of the ood split: goals = the next ones of the shuffle, almost all for "
        "products that are trained on; products = those of held-out products, one in twenty, "
        "which no training goal asks for",
    )
    dev_goals: int = Field(
        1000,
        ge=1,
        description="with ood = 'goals': goals of the ood split; the rest is for training",
    )
    observation: Mode = Field(
        "text_rich",
        description="text = one line, as published; text_rich = one line per element with buttons",
    )
    per_page: int = Field(10, ge=1, le=50, description="products on a page of results")
    page_limit: int = Field(
        3000,
        ge=0,
        description="maximum characters of a page (at least 200); the page says what was cut; "
        "0 = pages are never cut",
    )
    long_page_limit: int = Field(
        3750,
        ge=0,
        description="maximum characters of a page in the ood split (at least 200); 0 = no limit",
    )
    anchor: Literal["state", "text"] = Field(
        "state",
        description="turns compared with each other have the same state (search words and chosen "
        "options included), or the same text of the page, as published",
    )
    list_actions: bool = Field(
        True, description="list all possible actions below every page, as in the paper's prompt"
    )
    recap_limit: int = Field(
        2000, ge=400, description="maximum characters of a recap; pages are shortened"
    )
    score_parts: bool = Field(
        True,
        description="the recap of a purchase lists the parts of its score; false = the score only",
    )
    pay: Literal["solved", "graded"] = Field(
        "solved",
        description="reward of an episode = scale x (score == 1), as published, or scale x score",
    )
    expert: Literal["goal", "shopper"] = Field(
        "goal",
        description="expert of a supervised start: goal = opens the product that is meant; "
        "shopper = knows only what pages and memory say: opens results in order, goes back if an "
        "option is missing or the price too high, buys the first product that fits, and passes "
        "over what it has tried in past episodes",
    )
    tagger: Tagger = Field(
        "auto",
        validate_default=True,
        description="finds nouns in titles: spaCy's small English model or bundled rules; "
        "auto = spaCy if installed",
    )
    _split: Split = PrivateAttr("train")

    @field_validator("tagger")
    @classmethod
    def _resolve(cls, tagger: Tagger) -> Tagger:
        """Resolve `auto` at once, so that recipe.toml of a run names the tagger."""
        return ("spacy" if has_spacy() else "bundled") if tagger == "auto" else tagger

    @model_validator(mode="after")
    def _has_effect(self) -> "WebShop":
        if self.data and self.style != "full":
            find_files(data_folder(self.data))  # an error of the folder is reported first
            raise UserError("style has no effect with data: it is for generated catalogues")
        for name in ("page_limit", "long_page_limit"):
            if 0 < getattr(self, name) < SHORTEST_PAGE:
                raise UserError(f"{name} must be 0 (no limit) or at least {SHORTEST_PAGE}")
        if self.ood == "products" and "dev_goals" in self.model_fields_set:
            default = type(self).model_fields["dev_goals"].default
            if self.dev_goals != default:
                raise UserError("dev_goals has no effect with ood = 'products'")
        if self.pay == "graded" and self.failure_reward:
            raise UserError(
                "pay = 'graded' has no effect with failure_reward: a failure always pays that; "
                "use pay = 'solved'"
            )
        return self

    def start(self, seed: int) -> WebShopState:
        limit = (self.long_page_limit if self._split == "ood" else self.page_limit) or NO_LIMIT
        tagger: Literal["spacy", "bundled"] = "spacy" if self.tagger == "spacy" else "bundled"
        names = (
            *("observation", "per_page", "list_actions", "recap_limit", "anchor", "score_parts"),
            *("expert", "max_turns"),
        )
        view = ShopView(limit, tagger, **{name: getattr(self, name) for name in names})
        return WebShopState(view, self.catalogue(), self.goal(seed))

    def rules(self) -> str:
        if self.per_page == 10:
            return _RULES
        return _RULES.replace("ten products", f"{self.per_page} products")

    def wording(self) -> WebShopWording:
        return WebShopWording(self)

    def instance(self, seat: int) -> str:
        return "You are the customer."

    def example_action(self) -> str:
        return "search[red shoes]"

    def outcome(self, score: float) -> Outcome:
        return "won" if score >= 1 else "lost"

    def paid_score(self, score: float) -> float:
        return score if self.pay == "graded" else float(score >= 1)

    # --- Catalogue, splits, goals ---

    def catalogue(self) -> Catalogue:
        """Shared by all states of a process. Large ones are shared by all processes."""
        folder = str(data_folder(self.data)) if self.data else ""
        size = self.products if self.data else self.products or 1000
        return open_catalogue(Source(folder, size, self.style, self.goals))

    def task_kind(self, seed: int) -> str:
        count = len(self.goal(seed).options)
        return f"{count} option{'s' if count != 1 else ''}"

    def check_data(self) -> None:
        """The files must exist and parse, and the splits must leave goals to train on.

        This is no check of the options: runs of another machine can be read without their data.
        """
        if self.tagger == "spacy" and not has_spacy():
            raise UserError(
                f"environments.tagger = 'spacy', but spaCy or its model {MODEL} is not installed: "
                "install both, or set tagger = 'bundled'"
            )
        if self.data:
            find_files(data_folder(self.data))
        self.places()

    def for_split(self, split: Split) -> "WebShop":
        found = self.model_copy()
        found._split = split
        return found

    def places(self) -> Sequence[int]:
        """The places of the split in the fixed shuffle of goals."""
        if self.ood == "products":
            return self._places_by_product()
        held, count = self.test_goals + self.dev_goals, self.catalogue().goals
        if count <= held:
            where = self.data or "the generated catalogue"
            raise UserError(
                f"{where} has {count:,} goals, and test_goals + dev_goals = {held:,} leaves "
                "none to train on: lower them, or take more products"
            )
        return {
            "test": range(self.test_goals),
            "ood": range(self.test_goals, held),
            "train": range(held, count),
        }[self._split]

    def _places_by_product(self) -> Sequence[int]:
        """As `places`: the ood split has the goals of held-out products behind the test goals."""
        held, others = self.catalogue().by_product(self.test_goals)
        if not held or not others:
            where = self.data or "the generated catalogue"
            raise UserError(
                f"{where} has too few products to hold some out: take more, or use ood = 'goals'"
            )
        return {"test": range(self.test_goals), "ood": held, "train": others}[self._split]

    def _earlier_goals(self) -> int:
        """The goals of earlier splits are the first ones of the shuffle: their number."""
        dev = self.dev_goals if self.ood == "goals" and self._split == "train" else 0
        return 0 if self._split == "test" else self.test_goals + dev

    def goal(self, seed: int) -> Goal:
        """The goal of an episode.

        Some goals have equal texts (a value is listed twice). A split skips texts of earlier
        splits.
        """
        places, catalogue = self.places(), self.catalogue()
        taken = catalogue.first_texts(self._earlier_goals())
        for step in range(len(places)):
            goal = catalogue.goal(places[(seed + step) % len(places)])
            if goal.text not in taken:
                return goal
        raise UserError(
            f"every goal of the split {self._split} is also one of an earlier split: take "
            "more products"
        )

    def instances(self) -> int | None:
        places, catalogue = self.places(), self.catalogue()
        texts = {catalogue.goal(place).text for place in places}
        return len(texts - set(catalogue.first_texts(self._earlier_goals())))

    def instance_key(self, seed: int) -> Hashable:
        return self.goal(seed).text

    def strata(self) -> int:
        count = len(self.places())
        return count if count <= _STRATA else 1
