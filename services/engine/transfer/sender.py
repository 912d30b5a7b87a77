"""The prefill engine's KV transfer."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

import ucxx._lib.libucxx as ucx

from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.context import Context
from services.engine.transfer.directory import Directory
from services.engine.transfer.events import LostReason, PeerAddress, PeerLost, PushOutcome, SenderEvent
from services.engine.transfer.fabric import Fabric
from services.engine.transfer.mailbox import Mailbox, Outbox
from services.engine.transfer.outbound import Outbound
from services.engine.transfer.pages import Page, PagePool
from services.engine.transfer.proof import TestPage
from services.engine.transfer.send_channel import SendChannel
from services.engine.transfer.stats import TransferStats
from services.engine.transfer.transfer_thread import TransferThread, pace_of
from services.engine.transfer.wire import request_bytes


class KvSender:
    """Pushes pages of KV to decode engines. Called by one thread, the engine's loop; no call waits for a peer."""

    def __init__(self, config: TransferConfig, pool: PagePool) -> None:
        """Start UCX and the transfer thread. Raises UCXError when UCX cannot start."""
        pool.memory.bind_thread()
        self._pool = pool
        self._events: Mailbox[SenderEvent] = Mailbox()
        self._commands: Mailbox[Callable[[], None]] = Mailbox()
        pace, bind = pace_of(config, pool.memory), pool.memory.bind_thread
        fabric = Fabric(config.ucx_options, self._commands.fileno())
        self._context = Context(config, pool, Outbox(self._events), time.monotonic)
        self._side = _SenderSide(self._context, fabric)
        self._thread = TransferThread(fabric, self._side, self._commands, pace, bind, self._events.wake)
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """Readable while `poll` has something."""
        return self._events.fileno()

    @property
    def stats(self) -> TransferStats:
        """Figures for metrics; callable from any thread."""
        return self._context.meters.snapshot(self._pool)

    def connect(self, address: PeerAddress) -> None:
        """Connect to a peer and prove the pair: PeerProven or PeerLost follows. A new incarnation replaces the old one;
        the same one is left alone."""
        self._commands.put(partial(self._side.connect, address))

    def disconnect(self, peer_id: str) -> None:
        """Close the connection on purpose; PeerLost(CLOSED) follows if there was one."""
        self._commands.put(partial(self._side.disconnect, peer_id))

    def push(
        self,
        peer_id: str,
        key: AttemptKey,
        token_start: int,
        num_tokens: int,
        page: Page,
        num_bytes: int,
        is_filled: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send the first `num_bytes` of `page`, the KV of tokens [token_start, token_start + num_tokens).

        The page, HELD by the caller, is the transfer's from here on and goes back to the pool by itself. Until
        `is_filled`, asked on the transfer's thread, the device may still write it; pages are filled in the order of
        their pushes. One Pushed follows. Raises ValueError when the size or the request id is wrong; the page is then
        still the caller's.
        """
        if not 0 < num_bytes <= self._pool.page_bytes:
            raise ValueError(f"num_bytes must be 1 to {self._pool.page_bytes} (a page), got {num_bytes}")
        request_bytes(key.request_id)
        outbound = Outbound(peer_id, key, token_start, num_tokens, num_bytes, page, is_filled)
        self._commands.put(partial(self._side.push, outbound))

    def drop(self, key: AttemptKey) -> None:
        """Do not send what has not been announced of this attempt; the rest finishes."""
        self._commands.put(partial(self._side.drop, key))

    def poll(self) -> list[SenderEvent]:
        """What happened since the last call, oldest first. Raises TransferError when the transfer thread has died."""
        self._thread.check()
        return self._events.drain()

    def close(self, timeout_s: float = 5.0) -> None:
        """End every connection and the thread, whatever is in flight; all pages are back. `poll` still tells the last
        events. Raises TransferError when the thread does not end in time."""
        self._thread.stop(timeout_s)


class _SenderSide:
    """Its half on the transfer thread; see `TransferThread`. At most one channel a peer."""

    def __init__(self, context: Context[SenderEvent], fabric: Fabric) -> None:
        self._context = context
        self._fabric = fabric
        self._channels: Directory[SendChannel] = Directory()
        self._by_peer: dict[str, SendChannel] = {}
        """The newest of each; those that have ended go with the next that connects."""
        self._filling: deque[Outbound] = deque()
        """Pages the device still writes, which nobody may touch or free."""
        self._test_page = TestPage(context.pool)

    def turn(self) -> bool:
        moved = self._fabric.turn()
        messages = self._fabric.messages()
        self._channels.deliver(messages, self._context.now())
        filled = self._send_filled()
        self._channels.flush()
        return moved or filled or bool(messages)

    @property
    def is_waiting(self) -> bool:
        return bool(self._filling)

    def tell(self) -> None:
        self._context.events.deliver()

    def tick(self, now: float) -> None:
        self._channels.tick(now)

    def leave(self, now: float) -> None:
        self._channels.leave(now)
        while self._filling:  # the engine has ended: what its device still writes is nobody's
            self._send(self._filling.popleft())

    def connect(self, address: PeerAddress) -> None:
        old = self._find(address.peer_id)
        if old is not None:
            if old.address == address:
                return
            old.channel.end(LostReason.REPLACED, "another incarnation is connected")
        try:
            link = self._fabric.connect(address.host, address.port)
        except ucx.UCXError as error:
            self._context.events.put(PeerLost(address.peer_id, address.incarnation, LostReason.CONNECT, str(error)))
            return
        self._by_peer = {peer: channel for peer, channel in self._by_peer.items() if channel.channel.ended is None}
        self._by_peer[address.peer_id] = self._channels.open(
            lambda number: SendChannel(self._context, address, number, link, self._test_page)
        )

    def disconnect(self, peer_id: str) -> None:
        channel = self._find(peer_id)
        if channel is not None:
            channel.leave(self._context.now())

    def push(self, outbound: Outbound) -> None:
        self._filling.append(outbound)
        self._send_filled()

    def drop(self, key: AttemptKey) -> None:
        for outbound in self._filling:
            outbound.is_dropped |= outbound.key == key
        for channel in self._channels:
            channel.drop(key)

    def _send_filled(self) -> bool:
        num_filled = 0
        while self._filling and self._filling[0].is_filled():
            self._send(self._filling.popleft())
            num_filled += 1
        return num_filled > 0

    def _send(self, outbound: Outbound) -> None:
        channel = self._find(outbound.peer_id)
        if channel is not None and not outbound.is_dropped:
            channel.push(outbound)
            return
        outbound.page.release()
        outcome = PushOutcome.DROPPED if outbound.is_dropped else PushOutcome.LOST
        self._context.meters.outcomes[outcome.value] += 1
        self._context.events.put(outbound.ended(outcome))

    def _find(self, peer_id: str) -> SendChannel | None:
        channel = self._by_peer.get(peer_id)
        return channel if channel is not None and channel.channel.ended is None else None
