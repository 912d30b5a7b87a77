"""What the channels of one side share. Transfer thread only, but for the thread-safe parts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from services.engine.transfer.config import TransferConfig
from services.engine.transfer.mailbox import Outbox
from services.engine.transfer.pages import PagePool
from services.engine.transfer.stats import Meters

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Context(Generic[E]):
    """Handed to every channel; `now` is the monotonic clock."""

    config: TransferConfig
    pool: PagePool
    events: Outbox[E]
    now: Callable[[], float]
    meters: Meters = field(default_factory=Meters)
