"""A wire that can be cut or held up: TCP on loopback, through which a process reaches a worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Forwards connections to one address until `cut`, and new ones again afterwards."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self.address = ""
        self.num_connections = 0

    async def start(self, port: int = 0) -> None:
        """Listen, on a free port unless one is given."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:  # nobody is there
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()

    def cut(self) -> None:
        """Every connection breaks at once, with what is under way."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def hold(self) -> None:
        """Connections stay and carry nothing, until `release`."""
        self._flows.clear()

    def release(self) -> None:
        """What was held up goes on."""
        self._flows.set()

    async def stop(self) -> None:
        """Cut, and listen no more."""
        assert self._server is not None
        self._server.close()
        self.release()
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxies(*targets: str) -> AsyncIterator[list[Proxy]]:
    """One in front of each address."""
    running = [Proxy(target) for target in targets]
    for proxy in running:
        await proxy.start()
    try:
        yield running
    finally:
        for proxy in running:
            await proxy.stop()
