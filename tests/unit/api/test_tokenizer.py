"""The tokenizer service: loaded once, beside the event loop, and again after a failure."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from services.pd_master.tokenizer import SHORT_BYTES, TokenizerService
from tests.unit.api.tiny_model import write_tiny_model


async def test_a_model_is_loaded_once_for_all_who_ask(tiny_model: Path) -> None:
    service = TokenizerService()
    texts = await asyncio.gather(*(service.text_of(tiny_model) for _ in range(8)))
    assert all(text is texts[0] for text in texts)
    service.close()


async def test_a_folder_that_failed_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = TokenizerService()
    with pytest.raises(ValueError, match="tokenizer.json does not exist"):
        await service.text_of(tmp_path)
    service.preload(tmp_path)
    with pytest.raises(ValueError, match="tokenizer.json does not exist"):
        await service.text_of(tmp_path)
    async with asyncio.timeout(60):
        while not any(record.levelno == logging.ERROR for record in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0)
    write_tiny_model(tmp_path)
    assert (await service.text_of(tmp_path)).encode("Hello")
    service.close()


async def test_a_long_text_leaves_the_loop_free(tiny_model: Path) -> None:
    service = TokenizerService()
    text = await service.text_of(tiny_model)
    turns = 0
    encoding = asyncio.create_task(service.run(text.encode, "Hello world, how are you today? " * 20_000))
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 50
    service.close()


async def test_who_stops_waiting_does_not_stop_the_load(tiny_model: Path) -> None:
    service = TokenizerService()
    asked = asyncio.create_task(service.text_of(tiny_model))
    await asyncio.sleep(0)
    asked.cancel()
    assert (await service.text_of(tiny_model)).vocab_size > 256
    service.close()


async def test_short_texts_take_no_thread_and_long_ones_do() -> None:
    service = TokenizerService()
    here = threading.get_ident()
    assert await service.run_for(SHORT_BYTES, threading.get_ident) == here
    assert await service.run_for(SHORT_BYTES + 1, threading.get_ident) != here
    service.close()
