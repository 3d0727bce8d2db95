"""WebShop's keywords, which list products in file order without a search.

The keywords are `<a> attribute`, `<c> category`, `<q> query`, and `<r>` for fifty random products.
The text after a keyword must equal an attribute, the first word of a category, or a query.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from mage.environments.webshop.products import Product
from mage.environments.webshop.search import Texts, join_texts

RANDOM = "<r>"
_ATTRIBUTE, _CATEGORY, _QUERY = "<a>", "<c>", "<q>"


@dataclass(frozen=True, slots=True)
class Listing:
    """Products under key k are `products[starts[k] : starts[k + 1]]`. Customers type the key."""

    keys: Texts
    starts: npt.NDArray[np.int64]
    products: npt.NDArray[np.int32]

    def find(self, words: str) -> list[int] | None:
        """The products of a keyword; None if the text starts with no keyword."""
        keyword, _, rest = words.partition(" ")
        if keyword not in (_ATTRIBUTE, _CATEGORY, _QUERY):
            return None
        number = self.keys.find(_key(keyword, rest.split(" ")[0] if keyword == _CATEGORY else rest))
        return (
            []
            if number is None
            else self.products[int(self.starts[number]) : int(self.starts[number + 1])].tolist()
        )


def build_listing(products: Iterable[Product], numbers: Iterable[int]) -> Listing:
    """Products in file order, each with its number."""
    found: dict[str, list[int]] = {}
    for product, number in zip(products, numbers, strict=True):
        for key in _keys(product):
            found.setdefault(key, []).append(int(number))
    keys = sorted(found, key=lambda key: key.encode("utf-8", "surrogatepass"))
    starts = np.cumsum([0, *(len(found[key]) for key in keys)], dtype=np.int64)
    listed = np.fromiter(chain.from_iterable(found[key] for key in keys), np.int32, int(starts[-1]))
    return Listing(join_texts(key.encode("utf-8", "surrogatepass") for key in keys), starts, listed)


def _keys(product: Product) -> set[str]:
    attributes = (_key(_ATTRIBUTE, attribute) for attribute in product.attributes)
    return {*attributes, _key(_CATEGORY, product.category), _key(_QUERY, product.query)}


def _key(keyword: str, what: str) -> str:
    return f"{keyword} {what}"
