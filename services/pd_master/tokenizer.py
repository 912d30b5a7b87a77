"""Tokenizes beside the event loop, so that a long prompt never delays other clients' streams or workers' heartbeats."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from services.common.errors import ContextLengthError
from services.pd_master.model_text import ModelText

log = logging.getLogger(__name__)

SHORT_BYTES = 4096
"""Text that is tokenized on the event loop, in up to a millisecond: as long as others wait for a frame of tokens. The
way to a thread and back costs up to a third of a millisecond, in which the threads take the interpreter and the caches
from each other."""

T = TypeVar("T")


class TokenizerService:
    """The texts of all served models, loaded on first use. Called by the API on the gateway's event loop."""

    def __init__(self, num_threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self._preloads: set[asyncio.Task[ModelText]] = set()
        self._texts: dict[Path, asyncio.Task[ModelText]] = {}

    async def text_of(self, folder: Path) -> ModelText:
        """The tokenizer and templates of a model folder. Raises ValueError when the folder is unusable."""
        loading = self._texts.get(folder)
        if loading is None:
            loading = asyncio.create_task(self.run(ModelText, folder), name=f"load {folder.name}")
            self._texts[folder] = loading
        if loading.done():
            return loading.result()
        try:
            return await asyncio.shield(loading)
        except ValueError:
            self._texts.pop(folder, None)  # the next request tries again
            raise

    def preload(self, folder: Path) -> None:
        """Begin to load; what goes wrong is logged now, and raised to each request that names the model."""
        loading = asyncio.create_task(self.text_of(folder), name=f"preload {folder.name}")
        self._preloads.add(loading)
        loading.add_done_callback(self._preloaded)

    def _preloaded(self, loading: asyncio.Task[ModelText]) -> None:
        self._preloads.discard(loading)
        error = None if loading.cancelled() else loading.exception()
        if error is not None:
            log.error("a model's tokenizer cannot be used", exc_info=error)

    async def run_for(self, num_bytes: int, work: Callable[..., T], *args: object) -> T:
        """Run `work` on so much text: in a thread, unless it is done before it would have got there and back."""
        if num_bytes <= SHORT_BYTES:
            return work(*args)
        return await self.run(work, *args)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run `work` in one of the tokenizer threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def close(self) -> None:
        """Waits for nothing: texts in work are dropped with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def encode_bounded(text: ModelText, prompt: str, max_tokens: int, *, param: str, special: bool = True) -> list[int]:
    """Ids of a prompt of at most `max_tokens` tokens.

    A text too long for any tokenization of so many tokens is refused unread. Raises ContextLengthError naming `param`.
    """
    if len(prompt) > max_tokens * text.max_token_bytes:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} characters; the model's context holds {max_tokens} tokens", param=param
        )
    ids = text.encode(prompt, add_special_tokens=special)
    if len(ids) >= max_tokens:
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens; the model's context holds {max_tokens} with the output", param=param
        )
    return ids
