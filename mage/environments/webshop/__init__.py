"""WebShop: find and buy a product in a web store, by search, pages, options; graded by how well the purchase fits."""

from mage.environments.webshop.environment import WebShop

__all__ = ["WebShop"]
