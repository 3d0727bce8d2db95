"""WebShop: find and buy a product in a web store; the score is how well the purchase fits."""

from mage.environments.webshop.environment import WebShop

__all__ = ["WebShop"]
