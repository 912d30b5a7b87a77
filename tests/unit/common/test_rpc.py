"""Channels between pods, towards peers that take their time."""

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services.common import rpc

SLOW_S = 1.5
"""Longer than the longest pause between attempts to connect."""


async def healthy_server() -> tuple[grpc.aio.Server, int]:
    server, servicer = rpc.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    return server, port


async def test_a_peer_that_is_slow_to_answer_a_connection_is_reached() -> None:
    server, port = await healthy_server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SLOW_S)  # neither TLS nor HTTP/2 begins before
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    wire = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with rpc.channel(f"127.0.0.1:{wire.sockets[0].getsockname()[1]}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await server.stop(None)
    wire.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        sink.write(data)
    sink.close()
