"""A small API server for pods: real HTTP lists and watch streams that a test can end, break, outdate or silence."""

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.ports import free_ports

Manifest = dict[str, Any]


def pod(name: str, ip: str | None, *, ready: bool = True, leaving: bool = False, phase: str = "Running") -> Manifest:
    """A worker's pod as the API server shows it."""
    metadata: Manifest = {"name": name, "uid": f"uid-{name}"}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: Manifest = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
    if ip is not None:
        status["podIP"] = ip
    ports = [{"name": "http", "containerPort": 9000}, {"name": "grpc", "containerPort": 9001}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "sluice", "ports": ports}]}, "status": status}


@dataclass
class FakeApiServer:
    """Holds pods under a rising resourceVersion; `async with` serves them on a loopback port."""

    pods: dict[str, Manifest] = field(default_factory=dict)
    version: int = 100
    oldest: int = 0
    """Watches from a version before it are answered 410."""
    gone_as_event: bool = False
    """Say 410 as an ERROR event in a stream with status 200, as servers do once a watch has begun."""
    status: int = 200
    """What lists and watches are answered with."""
    requests: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """The Authorization header of each request that had one."""
    port: int = field(default_factory=lambda: free_ports(1)[0])
    """Kept while it is away, when nobody else must get it."""
    _log: list[tuple[int, str, Manifest]] = field(default_factory=list)
    _streams: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_lists(self) -> int:
        """Lists asked for so far."""
        return sum("watch" not in request for request in self.requests)

    @property
    def watches(self) -> list[dict[str, str]]:
        """The options of the watches asked for so far."""
        return [request for request in self.requests if "watch" in request]

    async def __aenter__(self) -> "FakeApiServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Go away: nobody listens and every stream breaks."""
        assert self._server is not None
        self._server.close()
        self.break_watches()

    # --------------------------------------------------------------------------------------------------------- pods

    def put(self, manifest: Manifest) -> None:
        """Add or change a pod and tell every watch."""
        name = manifest["metadata"]["name"]
        self._tell("MODIFIED" if name in self.pods else "ADDED", manifest)
        self.pods[name] = manifest

    def delete(self, name: str) -> None:
        """Delete a pod and tell every watch."""
        self._tell("DELETED", self.pods.pop(name))

    def forget(self, name: str) -> None:
        """Delete a pod and tell nobody: what happens between a watch that broke and the next one."""
        self.pods.pop(name)
        self.version += 1

    def bookmark(self) -> None:
        """Tell every watch how far it is."""
        self.version += 1
        for stream in self._streams:
            self._write(stream, "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def _tell(self, kind: str, manifest: Manifest) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self._log.append((self.version, kind, json.loads(json.dumps(manifest))))
        for stream in self._streams:
            self._write(stream, kind, manifest)

    # ------------------------------------------------------------------------------------------------------- watches

    def end_watches(self) -> None:
        """End every watch in order, as after timeoutSeconds."""
        for stream in self._streams:
            stream.write(b"0\r\n\r\n")
            stream.close()
        self._streams.clear()

    def break_watches(self) -> None:
        """Cut every watch in the middle."""
        for stream in self._streams:
            stream.transport.abort()
        self._streams.clear()

    @staticmethod
    def _write(stream: asyncio.StreamWriter, kind: str, manifest: Manifest) -> None:
        line = json.dumps({"type": kind, "object": manifest}).encode() + b"\n"
        stream.write(b"%x\r\n%s\r\n" % (len(line), line))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ")[1].decode()
            query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
            self.tokens += re.findall(r"(?im)^authorization: (.*?)\r$", head.decode())
            self.requests.append(query | {"path": urlsplit(target).path})
            if self.status != 200:
                self._answer(writer, self.status, {"message": "as told"})
            elif "watch" not in query:
                self._answer(writer, 200, self._listing())
            elif int(query["resourceVersion"]) < self.oldest and not self.gone_as_event:
                self._answer(writer, 410, {"message": "too old resource version"})
            else:
                self._begin_watch(writer, int(query["resourceVersion"]))

    def _listing(self) -> Manifest:
        return {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.pods.values())}

    def _begin_watch(self, writer: asyncio.StreamWriter, since: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if since < self.oldest:
            self._write(writer, "ERROR", {"code": 410, "message": "too old resource version"})
            writer.write(b"0\r\n\r\n")
            writer.close()
            return
        for version, kind, manifest in self._log:
            if version > since:
                self._write(writer, kind, manifest)
        self._streams.add(writer)

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, status: int, body: Manifest) -> None:
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(text), text))
        writer.close()
