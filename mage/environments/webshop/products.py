"""The records of the shop: products and shopping goals."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One product. `price` is the cost of a purchase, `price_tag` is displayed."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_tag: str
    price: float
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    instruction: str
    wanted: tuple[str, ...]  # the attributes that the instruction asks for
    human: tuple[
        tuple[str, tuple[str, ...], tuple[str, ...]], ...
    ]  # human instructions: text, attributes, options


@dataclass(frozen=True, slots=True)
class Goal:
    """The task. An option is a (name, value) pair, or the bare value in human instructions."""

    number: int
    asin: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str] | str, ...]
    price_upper: float
