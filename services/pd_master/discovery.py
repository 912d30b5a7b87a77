"""Where workers may be. Discovery supplies addresses and nothing else: who is there, and how it does, the worker itself
says on its session (R14)."""

from collections.abc import AsyncIterator
from typing import Protocol


class Discovery(Protocol):
    """A source of worker addresses; the registry keeps a session to each."""

    @property
    def withheld(self) -> frozenset[str]:
        """Addresses that keep their sessions but get no new work, as of now."""
        ...

    def addresses(self) -> AsyncIterator[frozenset[str]]:
        """Yield the whole set of host:port, at once and again after each change; never ends."""
        ...


class StaticDiscovery:
    """A list that was given at the start."""

    withheld: frozenset[str] = frozenset()

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = frozenset(addresses)

    async def addresses(self) -> AsyncIterator[frozenset[str]]:
        """Yield the list, once."""
        yield self._addresses
