"""An engine process's main loop: turns until Shutdown, sleep when there is nothing to do."""

import gc
import time

import zmq

from services.common.ipc import Alive, Counters
from services.engine.channel import ALIVE_S, Channel
from services.engine.lifeline import Lifeline
from services.engine.loop import Engine

_GRAMMAR_POLL_S = 0.001


def serve(engine: Engine, channel: Channel) -> None:
    """Run until Shutdown. Raises what breaks the engine, or ControlProcessLostError."""
    _leave_garbage()
    channel.send([engine.ready()])
    told, was_empty = time.monotonic(), True
    while not engine.stopped:
        commands = channel.receive()
        with channel.stepping():
            events = engine.turn(commands, channel.send)
        now = time.monotonic()
        if now - told >= ALIVE_S or engine.is_empty != was_empty:
            told = now
            usage = engine.state.usage()
            channel.note(engine.step, usage)
            events += [Counters(engine.state.counters.values()), Alive(engine.step, 0.0, usage)]
        if events:
            channel.send(events)
        was_empty = engine.is_empty
        if not engine.has_work:
            channel.wait(ALIVE_S)
            gc.collect(1)
        elif engine.only_waits:
            channel.wait(_GRAMMAR_POLL_S)


def follow(engine: Engine, turns: "zmq.Socket[bytes]", wake: list[int], lifeline: Lifeline) -> None:
    """Run a rank above 0 until rank 0's Shutdown. Raises what breaks the engine, or ControlProcessLostError.

    `turns` is readable when a turn has begun, one of `wake` when the KV transfer has something to say.
    """
    _leave_garbage()
    poller = zmq.Poller()
    for waited in (turns, *wake, *(() if lifeline.fd is None else (lifeline.fd,))):
        poller.register(waited, zmq.POLLIN)
    checked = time.monotonic()
    while not engine.stopped:
        if not engine.follow() and not engine.is_copying:
            poller.poll(int(1000 * (_GRAMMAR_POLL_S if engine.state.grammars.busy else ALIVE_S)))
            if not engine.has_work:
                gc.collect(1)
        now = time.monotonic()
        if now - checked >= ALIVE_S:
            checked = now
            lifeline.check()


def _leave_garbage() -> None:
    """A collection in the loop is a pause for every stream; idle turns collect."""
    gc.collect()
    gc.freeze()
    gc.disable()
