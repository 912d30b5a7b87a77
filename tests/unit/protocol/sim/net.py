"""Sessions: two queues in order. A break loses what is under way; the accepting side may notice late."""

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

_numbers = itertools.count(1)


class Node(Protocol):
    """One start of a process."""

    def hear(self, session: "Session", message: Any, now: float) -> None:  # noqa: ANN401 - any message of a session
        """A message came."""
        ...

    def closed(self, session: "Session", now: float) -> None:
        """The session is gone."""
        ...


@dataclass(eq=False)
class Session:
    """Opened by `client` towards `server`; the first message of each side is its hello."""

    client: Node
    server: Node
    number: int = field(default_factory=lambda: next(_numbers))
    to_server: deque[Any] = field(default_factory=deque)
    to_client: deque[Any] = field(default_factory=deque)
    dead: bool = False
    server_noticed: bool = False

    def say(self, sender: Node, message: Any) -> None:  # noqa: ANN401
        """Write; lost when the session has broken, whether the sender knows or not."""
        if not self.dead:
            (self.to_server if sender is self.client else self.to_client).append(message)

    def deliver(self, *, to_server: bool, now: float, repeat: bool = False) -> None:
        """Hand over the next message one way; `repeat` leaves a copy that comes last."""
        queue = self.to_server if to_server else self.to_client
        message = queue.popleft()
        if repeat and "Hello" not in type(message).__name__:
            queue.append(message)
        (self.server if to_server else self.client).hear(self, message, now)

    def break_off(self, now: float) -> None:
        """Cut it: the client notices at once, the server when `notice` is called."""
        if not self.dead:
            self.dead = True
            self.to_server.clear()
            self.to_client.clear()
            self.client.closed(self, now)

    def notice(self, now: float) -> None:
        """The server sees that it is gone."""
        if not self.server_noticed:
            self.server_noticed = True
            self.server.closed(self, now)
