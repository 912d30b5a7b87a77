"""The decode engine's KV transfer."""

import time
from collections.abc import Callable
from functools import partial

from services.common.ipc import AttemptKey
from services.engine.transfer.admission import Admission
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.context import Context
from services.engine.transfer.directory import Directory
from services.engine.transfer.events import Received, ReceiverEvent
from services.engine.transfer.fabric import Fabric
from services.engine.transfer.link import Link
from services.engine.transfer.mailbox import Mailbox, Outbox
from services.engine.transfer.pages import PagePool
from services.engine.transfer.receive_channel import ReceiveChannel
from services.engine.transfer.stats import TransferStats
from services.engine.transfer.transfer_thread import TransferThread, pace_of


class KvReceiver:
    """Receives pages of KV from prefill engines. Called by one thread, the engine's loop; no call waits for a peer."""

    def __init__(self, config: TransferConfig, pool: PagePool) -> None:
        """Start UCX, the listener and the transfer thread. Raises UCXError when UCX cannot start or have the port."""
        pool.memory.bind_thread()
        self._pool = pool
        self._expected: set[AttemptKey] = set()
        self._events: Mailbox[ReceiverEvent] = Mailbox()
        self._commands: Mailbox[Callable[[], None]] = Mailbox()
        pace, bind = pace_of(config, pool.memory), pool.memory.bind_thread
        fabric = Fabric(config.ucx_options, self._commands.fileno())
        self.port = fabric.listen(config.listen_port)
        """Where senders connect; on every interface."""
        self._context = Context(config, pool, Outbox(self._events), time.monotonic)
        self._side = _ReceiverSide(self._context, fabric)
        self._thread = TransferThread(fabric, self._side, self._commands, pace, bind, self._events.wake)
        pool.notify(self._on_page_released)
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """Readable while `poll` has something."""
        return self._events.fileno()

    @property
    def stats(self) -> TransferStats:
        """Figures for metrics; callable from any thread."""
        return self._context.meters.snapshot(self._pool)

    def expect(self, key: AttemptKey) -> None:
        """Payloads of this attempt are wanted from now on: its slots are allocated."""
        self._expected.add(key)
        self._commands.put(partial(self._side.admission.expect, key))

    def forget(self, key: AttemptKey) -> None:
        """The attempt is gone, joined or failed; ends every `expect`. After this call `poll` gives out nothing of it;
        what still arrives is thrown away and answered so. Unknown keys leave a tombstone as well."""
        self._expected.discard(key)
        self._commands.put(partial(self._side.admission.forget, key))

    def poll(self) -> list[ReceiverEvent]:
        """What happened since the last call, oldest first. The caller releases the page of each Received once its KV is
        scattered. Raises TransferError when the transfer thread has died."""
        self._thread.check()
        return [event for event in self._events.drain() if self._is_wanted(event)]

    def close(self, timeout_s: float = 5.0) -> None:
        """End every connection and the thread, whatever is in flight; all pages but those of Received events not yet
        released are back. Raises TransferError when the thread does not end in time."""
        self._thread.stop(timeout_s)
        self._pool.notify(None)

    def _is_wanted(self, event: ReceiverEvent) -> bool:
        """Give back the page of an attempt forgotten while its event was on the way."""
        if isinstance(event, Received) and event.key not in self._expected:
            event.page.release()
            return False
        return True

    def _on_page_released(self) -> None:
        if self._thread.is_current:
            self._events.wake()  # an idle loop says how many pages are in use when that changes
        if self._side.admission.is_waiting:
            self._commands.put(self._side.admission.serve)


class _ReceiverSide:
    """Its half on the transfer thread; see `TransferThread`."""

    def __init__(self, context: Context[ReceiverEvent], fabric: Fabric) -> None:
        config = context.config
        self.admission = Admission(context.pool, config.early_grace_s, config.tombstone_s, context.now)
        self._context = context
        self._fabric = fabric
        self._channels: Directory[ReceiveChannel] = Directory()

    def turn(self) -> bool:
        moved = self._fabric.turn()
        accepted = self._fabric.accepted()
        for link in accepted:
            self._greet(link)
        messages = self._fabric.messages()
        self._channels.deliver(messages, self._context.now())
        self._channels.flush()
        return moved or bool(accepted) or bool(messages)

    @property
    def is_waiting(self) -> bool:
        return self._fabric.is_reading

    def tell(self) -> None:
        self._context.events.deliver()

    def tick(self, now: float) -> None:
        self._channels.tick(now)
        self.admission.tick(now)

    def leave(self, now: float) -> None:
        self._channels.leave(now)

    def _greet(self, link: Link) -> None:
        self._channels.open(
            lambda number: ReceiveChannel(self._context, self.admission, number, link, self._replace_older)
        )

    def _replace_older(self, newcomer: ReceiveChannel) -> None:
        """A rank of a peer has one connection: an accepted hello ends the one before, never the other way round."""
        assert newcomer.hello is not None
        for channel in self._channels:
            if channel is not newcomer and channel.hello and channel.hello.name == newcomer.hello.name:
                channel.replace()
