"""How channels and servers between pods are set up: message limits, keepalive, reconnect; and backoff with jitter."""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

import grpc
import grpc.aio

MAX_MESSAGE_BYTES = 64 * 2**20
"""A frame of prompt ids: 8 million tokens of five bytes fit with room to spare; more is a mistake."""

KEEPALIVE_TIME_MS = 2_000
"""Pings on a connection: with the timeout below, a peer that vanished without a FIN breaks its streams in 6 s.

With the default timeout masters end sessions to silent workers before that; a process that gets no turn for a while
keeps its connections.
"""
KEEPALIVE_TIMEOUT_MS = 4_000

CONNECT_TIMEOUT_MS = 5_000
"""How long a peer may take to answer a connection, TLS included: a busy one, or one far away, takes its time."""

_LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_SERVER_ONLY = [
    # A server closes connections that ping more often than it allows: it must allow what our channels do.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    # A server that was held up reads several pings at once: that must not end a healthy connection (too_many_pings).
    ("grpc.http2.max_ping_strikes", 0),
]
_CHANNEL_ONLY = [
    # Sessions have a backoff of their own; the channel's grows to two minutes, in which a worker is back long ago.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # By its name the shortest pause between attempts, in truth the shortest time that an attempt is given.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Sessions to different incarnations must not share a connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


Dial: TypeAlias = Callable[[str], grpc.aio.Channel]
"""Opens a channel to host:port."""


def channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, server_name: str = ""
) -> grpc.aio.Channel:
    """A channel to host:port for sessions between pods, plain text without credentials; the caller closes it.

    `server_name`: what the server's certificate has to bear, whatever its address is.
    """
    options: list[tuple[str, str | int]] = [*_LIMITS, *_KEEPALIVE, *_CHANNEL_ONLY]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, credentials, options=options)


def server(interceptors: Sequence[grpc.aio.ServerInterceptor] = (), *, is_shared: bool = False) -> grpc.aio.Server:
    """A server with the same limits; the caller adds services and ports, starts and stops it.

    `is_shared`: others serve the same port, and its connections are shared at random. Else a second start fails.
    """
    options = [*_LIMITS, *_KEEPALIVE, *_SERVER_ONLY, ("grpc.so_reuseport", int(is_shared))]
    return grpc.aio.server(interceptors=list(interceptors), options=options)


def bind(target: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
    """Listen on host:port and return the port that was taken (port 0 takes a free one). OSError when it is in use.

    Without credentials it speaks plain text.
    """
    try:
        if credentials is None:
            port = target.add_insecure_port(address)
        else:
            port = target.add_secure_port(address, credentials)
    except RuntimeError as error:  # grpc raises it for an address in use
        raise OSError(f"cannot listen on {address}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {address}")
    return port


class Backoff:
    """Waiting times between attempts to connect: doubling up to a bound, each drawn from the upper half of its range.

    The draw keeps many masters that lost one worker from coming back to it in step.
    """

    def __init__(self, first_s: float = 0.05, most_s: float = 1.0, draw: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._draw = draw
        self._next_s = first_s

    def next_s(self) -> float:
        """Return how long to wait now, in seconds."""
        wait, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        return wait * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Start again from the shortest wait: the last attempt succeeded."""
        self._next_s = self._first_s
