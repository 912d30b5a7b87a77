"""The models that workers serve, each with its tokenizer's folder: what the API tokenizes with and lists.

A model is known from the moment a worker of its group has sent the files, and stays known when its workers go: clients
then hear that nobody serves it now (503), not that it does not exist.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from services.common.errors import ModelNotFoundError, SluiceError
from services.common.messages import WorkerHello
from services.pd_master import tokenizer_files

log = logging.getLogger(__name__)

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One group of workers, under the name that clients use."""

    name: str
    group: str
    tokenizer_dir: Path
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class Catalog:
    """Used by the registry, which tells it of workers, and by the API, which asks. Owns a temporary folder: `close`."""

    def __init__(self) -> None:
        self.on_served: Callable[[ServedModel], None] | None = None
        """Told of each model that comes or changes, so that its tokenizer is ready before its first request."""
        self._models: dict[str, ServedModel] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-tokenizers-")
        self._sources: dict[str, dict[str, tuple[WorkerHello, grpc.aio.Channel]]] = {}
        """By group, then by worker: who can still be asked for files that are not here."""
        self._fetches: dict[str, asyncio.Task[None]] = {}
        """By group."""

    def models(self) -> list[ServedModel]:
        """All of them, by name; empty before the first worker has been seen."""
        return sorted(self._models.values(), key=lambda model: model.name)

    def model(self, name: str) -> ServedModel:
        """Raises ModelNotFoundError, which names those there are."""
        found = self._models.get(name)
        if found is None:
            known = ", ".join(repr(model.name) for model in self.models()) or "none yet"
            raise ModelNotFoundError(f"no model {name!r} is served here; there are: {known}", param="model")
        return found

    def seen(self, hello: WorkerHello, channel: grpc.aio.Channel) -> None:
        """A worker said hello: fetch its group's files unless they are here. The channel stays open for its session."""
        known = self._models.get(hello.model)
        if known is not None and known.group == hello.group:
            return
        self._sources.setdefault(hello.group, {})[hello.worker.worker_id] = hello, channel
        fetch = self._fetches.get(hello.group)
        if fetch is None or fetch.done():
            self._fetches[hello.group] = asyncio.create_task(self._fetch(hello.group))

    async def close(self) -> None:
        """End fetches and remove the files."""
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        self._folder.cleanup()

    async def _fetch(self, group: str) -> None:
        """Ask one worker of the group after the other, for as long as any has a session."""
        sources = self._sources[group]
        while sources:
            worker_id = next(iter(sources))
            hello, channel = sources.pop(worker_id)
            try:
                await self._take(hello, channel)
            except (asyncio.CancelledError, grpc.aio.UsageError):  # the channel was closed: it will say hello again
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise
            except (grpc.aio.AioRpcError, SluiceError, TimeoutError) as error:
                log.warning("tokenizer of group %s from %s: %s", group, worker_id, error)
                sources.setdefault(worker_id, (hello, channel))
                await asyncio.sleep(_RETRY_S)
            else:
                sources.clear()

    async def _take(self, hello: WorkerHello, channel: grpc.aio.Channel) -> None:
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        try:
            await tokenizer_files.fetch(channel, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        limits = hello.limits
        self._models[hello.model] = ServedModel(
            hello.model, hello.group, folder, limits.max_context_tokens, limits.vocab_size, limits.eos_token_ids
        )
        if self.on_served is not None:
            self.on_served(self._models[hello.model])
        log.info("model %s is served, group %s", hello.model, hello.group)
