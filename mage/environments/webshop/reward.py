"""The score of a purchase, 0 to 1, exactly as WebShop computes it (goal.py of its release).

r = r_type * (attributes met + options met + price met) / (attributes wanted + options wanted + 1)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mage.environments.webshop.matching import token_set_ratio
from mage.environments.webshop.nouns import nouns
from mage.environments.webshop.products import Goal, Product

_ALIKE = 85
# WebShop's list in its order. The first colour of THIS list that occurs in a text counts.
_COLOUR_WORDS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze "
    "brown burgundy camel camo caramel champagne charcoal cheetah "
    "chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark "
    "denim eggplant elephant espresso fuchsia gold granite grape "
    "graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard "
    "light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum "
    "purple rainbow red rose royal rust sand sapphire seashell silver "
    "skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet "
    "walnut wheat white wine yellow"
)
_COLOURS = tuple(_COLOUR_WORDS.split())


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of a purchase and its parts."""

    type: float
    attributes: int
    options: int
    price: bool
    score: float


def judge(
    bought: Product,
    chosen: Iterable[str],
    goal: Goal,
    wanted: Product,
    tagger: Literal["spacy", "bundled"],
) -> Reward:
    """Score a purchase. `wanted` is the goal's product, `chosen` the chosen option values."""
    kind = type_reward(bought, wanted, tagger)
    attributes = sum(_has_attribute(bought, attribute) for attribute in goal.attributes)
    options = count_options(tuple(chosen), goal.options)
    price = bought.price <= goal.price_upper
    score = (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1) * kind
    return Reward(kind, attributes, options, price, score)


def type_reward(bought: Product, wanted: Product, tagger: Literal["spacy", "bundled"]) -> float:
    """1 for the same query, two common category parts, or similar titles; else 0.5.

    Too few common nouns in the titles override all of these.
    """
    likeness = title_likeness(bought.title, wanted.title, tagger)
    if likeness == 0:
        return 0.0
    if likeness < 0.1:
        return 0.1
    if bought.query == wanted.query or len(_parts(bought) & _parts(wanted)) >= 2 or likeness > 0.2:
        return 1.0
    return 0.5


def title_likeness(bought: str, wanted: str, tagger: Literal["spacy", "bundled"]) -> float:
    """Distinct common nouns / number of nouns of the wanted title; 0.2 if it has none."""
    names = nouns(wanted, tagger)
    return len(set(nouns(bought, tagger)) & set(names)) / len(names) if names else 0.2


def _parts(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split("›")}


def _has_attribute(bought: Product, attribute: str) -> bool:
    if any(token_set_ratio(own, attribute) > _ALIKE for own in bought.attributes):
        return True
    return any(
        attribute in text.lower()
        for text in (bought.title, " ".join(bought.bullets), bought.description)
    )


def count_options(chosen: tuple[str, ...], wanted: Iterable[tuple[str, str] | str]) -> int:
    """How many wanted options are met by some chosen value.

    WebShop compares a chosen value with the (name, value) PAIR, written as Python writes it. So a
    value also matches an option with that name. A pair is reduced to a colour only if its value is
    exactly that colour.
    """
    values = [_colour_in(value) for value in chosen]
    return sum(
        any(token_set_ratio(value, _written(option)) > _ALIKE for value in values)
        for option in wanted
    )


def _written(option: tuple[str, str] | str) -> str:
    if isinstance(option, str):
        return _colour_in(option)
    return next((colour for colour in _COLOURS if colour in option), str(option))


def _colour_in(text: str) -> str:
    return next((colour for colour in _COLOURS if colour in text), text)
