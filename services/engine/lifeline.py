"""The pipe by which an engine process learns that its control process is gone.

The control process holds the writing end open and never writes again, so that it ends with that process, however that
ends. The loop looks between turns. A rank can also hang inside a step, waiting for another rank that is gone: a thread
waits on the pipe too and ends the process when the loop has not.
"""

import os
import select
import threading
import time

_GRACE_S = 10.0


class ControlProcessLostError(Exception):
    """The control process is gone or does not read: the engine ends, so that the pod starts both anew (R15)."""


class Lifeline:
    """Made by the process's main; None stands for no pipe, where a person started the engine by hand."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self._parent = os.getppid()
        self._poll = select.poll()
        if fd is not None:
            self._poll.register(fd, select.POLLIN | select.POLLHUP)
            threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def check(self) -> None:
        """Raise ControlProcessLostError when the control process is gone."""
        if os.getppid() != self._parent or self._poll.poll(0):
            raise ControlProcessLostError("the control process has ended")

    def _watch(self) -> None:
        poll = select.poll()
        assert self.fd is not None
        poll.register(self.fd, select.POLLIN | select.POLLHUP)
        poll.poll()
        time.sleep(_GRACE_S)
        os._exit(1)
