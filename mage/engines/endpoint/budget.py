"""The budget of an endpoint: concurrent requests stay within it too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mage.engines.endpoint.http import KEPT, EndpointError


class Budget:
    """Spending against a limit; prices are for a million tokens.

    Before a request is sent, its largest possible cost is reserved. Stored answers count as well:
    the budget covers the whole evaluation, including interrupted parts. A request that was sent and
    got no answer counts with its largest possible cost, because the server may have charged it.
    """

    def __init__(self, price_in: float, price_out: float, limit: float | None) -> None:
        self.price_in, self.price_out, self.limit = price_in, price_out, limit
        self.spent = 0.0
        self._reserved: list[float] = []
        self._change = asyncio.Condition()

    def cost(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6

    def pay_lost(self, most: float) -> None:
        """Count a request without an answer. Raises EndpointError if a retry has no room."""
        self.spent += most
        if not self._has_room(0.0):
            raise self._used_up(most)

    @asynccontextmanager
    async def reserve(self, most: float) -> AsyncIterator[None]:
        """Reserve the cost of one request; waits for requests in flight if they may free some."""
        async with self._change:
            while not self._has_room(most):
                if not self._reserved:
                    raise self._used_up(most)
                await self._change.wait()
            self._reserved.append(most)
        try:
            yield
        finally:
            async with self._change:
                self._reserved.remove(most)
                self._change.notify_all()

    def _has_room(self, most: float) -> bool:
        return self.limit is None or self.spent + sum(self._reserved) + most <= self.limit

    def _used_up(self, most: float) -> EndpointError:
        return EndpointError(
            f"engines.budget = {self.limit:g} is used up: {self.spent:.4g} is spent and the next "
            f"request may cost {most:.4g}. {KEPT}, with a larger budget"
        )
