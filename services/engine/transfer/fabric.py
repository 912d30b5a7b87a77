"""UCX of one engine rank: context, worker, listener, links. Everything but the constructor runs on the transfer thread.

UCXX's synchronous classes are driven here by a plain loop, not its asyncio layer: a transfer is then an object that UCX
reports on, with no coroutine that a cancelled task could abandon (R1), and a message costs no scheduling. UCX works
only inside `turn`, and `sleep` waits for its events: a thread that polled it would hold its lock for whole rounds, and
every call from here would wait for them.
"""

import logging
import os
import select
import time
from collections import deque
from typing import Any

import numpy as np
import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from services.engine.transfer.flight import UcxObject
from services.engine.transfer.link import Link
from services.engine.transfer.wire import CONTROL_TAG_MASK, FRAME_BYTES, Control, control_tag, unpack_frame

log = logging.getLogger(__name__)

_DRAIN_S = 0.5
_RING = 64
"""Receives posted for control frames; more may arrive at once, they then wait inside UCX."""
UCX_DEFAULTS = {
    # A worker that comes back on its address must not wait for the old socket's TIME_WAIT.
    "TCP_CM_REUSEADDR": "y",
    # Endpoints report dead peers, and UCX leaves shared memory out of such endpoints unless it is told to trust it: two
    # workers of one machine would talk TCP, at 1 instead of 5 to 10 GB/s. A death shows on the listener's connection.
    "POSIX_ERROR_HANDLING": "y",
    "SYSV_ERROR_HANDLING": "y",
    # The same for reading a peer's memory in one copy (CMA). UCX leaves it out since a peer that failed may still read
    # pages given up here; SENT makes such a reader harmless. Without it both sides copy, through a buffer between them,
    # and only while both run: 3 instead of 10 GB/s where other work shares the cores.
    "CMA_MEMORY_INVALIDATE": "y",
    # Where TCP is the lane, 8 KiB segments (UCX's choice) give 1.1 GB/s on loopback, these 2 to 3.6.
    "TCP_TX_SEG_SIZE": "256k",
    "TCP_RX_SEG_SIZE": "512k",
    # UCXX switches this off for programs whose device memory UCX may not have seen being allocated; ours is there
    # before UCX starts, which looks for what there is. Without it each message asks the driver what kind of memory it
    # is: a receiver with 12 pages of 64 MiB in flight takes 58 us a page instead of 38.
    "MEMTYPE_CACHE": "y",
}
"""UCX settings that suit the transfer, without the UCX_ prefix."""


def unless_in_environment(options: dict[str, str]) -> dict[str, str]:
    """The settings that no UCX_ variable of the environment decides."""
    return {name: value for name, value in options.items() if f"UCX_{name}" not in os.environ}


class Fabric:
    """Moves bytes for the channels of one process: the only one that touches UCX's worker and listener."""

    def __init__(self, ucx_options: dict[str, str], wake_fd: int) -> None:
        """Start UCX. Environment variables win over `ucx_options`, and those over the defaults.

        A readable `wake_fd` ends `sleep`.
        """
        options = {**UCX_DEFAULTS, **ucx_options}
        self._context = ucx.UCXContext(
            unless_in_environment(options), (ucx.Feature.TAG, ucx.Feature.WAKEUP, ucx.Feature.STREAM)
        )
        self._worker = ucx.UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        self._worker.init_blocking_progress_mode()
        self._listener: Any = None
        self._accepted: list[Link] = []
        self._links: list[Link] = []
        self._ring = deque(self._post_control(Array(np.zeros(FRAME_BYTES, dtype=np.uint8))) for _ in range(_RING))
        self._poller = select.poll()
        self._poller.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self._poller.register(wake_fd, select.POLLIN)

    def listen(self, port: int) -> int:
        """Accept peers on every interface; returns the port. Raises UCXError when it cannot be had."""
        # The callback runs inside UCX's progress, where nothing of UCX may be called: it only takes the endpoint down.
        self._listener = ucx.UCXListener.create(
            self._worker, port, lambda endpoint: self._accepted.append(Link(endpoint)), deliver_endpoint=True
        )
        return int(self._listener.port)

    def connect(self, host: str, port: int) -> Link:
        """A link on its way up; where nobody listens it is soon dead. Raises UCXError on a bad address."""
        link = Link(ucx.UCXEndpoint.create(self._worker, host, port, True))
        self._links.append(link)
        return link

    def turn(self) -> bool:
        """Let UCX work and finish the flights it reports. Whether anything finished."""
        self._worker.progress()
        moved = [link.collect() for link in self._links]
        if any(link.is_closed for link in self._links):
            self._links = [link for link in self._links if not (link.is_closed and link.is_drained)]
        return any(moved)

    def accepted(self) -> list[Link]:
        """Peers that have connected since the last call."""
        if not self._accepted:
            return []
        accepted, self._accepted = self._accepted, []
        self._links += accepted
        return accepted

    def messages(self) -> list[Control]:
        """Control messages that have arrived since the last call."""
        arrived: list[Control] = []
        while self._ring[0][0].completed:  # receives complete in the order they were posted
            array = self._ring.popleft()[1]
            raw = bytes(array.obj)
            array.obj[0] = 0  # a shorter message that came next would else be read as this frame once more
            self._ring.append(self._post_control(array))
            try:
                arrived += unpack_frame(raw)
            except ValueError:
                log.warning("dropped a control frame that is none: %s", raw.hex())
        return arrived

    def sleep(self, timeout_s: float) -> None:
        """Wait until UCX or the wake fd has something, at most `timeout_s`."""
        if self._worker.arm():  # false: something came meanwhile
            self._poller.poll(timeout_s * 1e3)

    @property
    def is_reading(self) -> bool:
        """Whether any link reads from a peer's pages: the end of that wakes nobody."""
        return any(link.is_reading for link in self._links)

    @property
    def is_idle(self) -> bool:
        """Whether no link has anything in flight."""
        return all(link.is_drained for link in self._links)

    def close_listener(self) -> None:
        """Accept nobody any more."""
        self._listener = None

    def close(self) -> None:
        """Close all links and let go of UCX. A flight UCX does not report within _DRAIN_S is never reported."""
        self.close_listener()
        for link in self._links:
            link.close()
        deadline = time.monotonic() + _DRAIN_S
        while self._links and time.monotonic() < deadline:
            self.turn()
        self._worker.cancel_inflight_requests()
        self._worker.progress()

    def _post_control(self, array: UcxObject) -> tuple[UcxObject, UcxObject]:
        request = self._worker.tag_recv(array, ucx.UCXXTag(control_tag(0)), ucx.UCXXTagMask(CONTROL_TAG_MASK))
        return request, array
