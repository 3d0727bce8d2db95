"""The recap of a shopping episode: actions, pages with prices, the purchase and its score."""

from collections.abc import Mapping, Sequence

from mage.environments.webshop.products import Goal, Product
from mage.environments.webshop.reward import Reward

_TITLE = 60  # characters of a title in a recap
_TASK, _ACTION = 400, 200  # characters of the instruction and of an action
_SHORTEST = 40  # characters of a page that are always kept

Step = tuple[str, str]  # an action, and the page that it opened in a few words


def describe_results(number: int, total: int, shown: Sequence[Product]) -> str:
    """A results page: every product with its price."""
    listed = "; ".join(
        f"{product.asin} {shorten(product.title, _TITLE)} {product.price_tag}" for product in shown
    )
    return f"page {number} of {total} results: {listed or 'nothing'}"


def describe_item(product: Product) -> str:
    """A product page: title, price, and the values of all options."""
    offered = [f"{name}: {', '.join(values)}" for name, values in product.options.items()]
    return "; ".join([f"{shorten(product.title, _TITLE)} {product.price_tag}", *offered])


def describe_text(name: str, product: Product) -> str:
    """A sub page of a product."""
    texts = {
        "description": product.description,
        "features": " ".join(bullet.strip() for bullet in product.bullets),
    }
    return texts.get(name, "").strip() or "nothing"


def describe_purchase(
    product: Product, chosen: Mapping[str, str], reward: Reward, goal: Goal, parts: bool = True
) -> str:
    """The purchase, its score and the parts of the score, if wanted."""
    picked = ", ".join(f"{name}: {value}" for name, value in chosen.items())
    bought = f"You bought {product.asin}, {shorten(product.title, 80)}, {product.price_tag}"
    if picked:
        bought += f" ({shorten(picked, 80)})"
    score = f"{bought}. Score {reward.score:.2f} of 1"
    if not parts:
        return f"{score}."
    listed = [
        f"type {reward.type:g}",
        f"attributes {reward.attributes} of {len(goal.attributes)}",
        f"options {reward.options} of {len(goal.options)}",
        f"price {'within the limit' if reward.price else 'too high'}",
    ]
    return f"{score}: {', '.join(listed)}."


def write_recap(task: str, steps: Sequence[Step], result: str, limit: int) -> str:
    """The episode in at most about `limit` characters. Pages are cut, all to the same length."""
    head = f"Task: {shorten(task, _TASK)}."
    actions = [shorten(action, _ACTION) for action, _ in steps]
    fixed = len(head) + len(result) + sum(len(action) + 6 for action in actions)
    room = max(_SHORTEST, (limit - fixed) // max(1, len(steps)))
    lines = [
        f"{number}. {action}" + (f": {shorten(page, room)}" if page else "")
        for number, (action, (_, page)) in enumerate(zip(actions, steps, strict=True), start=1)
    ]
    return "\n".join([head, *(lines or ["You did nothing."]), result])


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
