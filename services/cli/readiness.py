"""Waiting until processes answer over HTTP that they are ready. There is no event to wait on: they are asked again."""

import asyncio
import http
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable

_ASK_EVERY_S = 0.1
_ANSWER_WITHIN_S = 2.0
_OWN_SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_OWN_SERVER.check_hostname, _OWN_SERVER.verify_mode = False, ssl.CERT_NONE
"""We ask the process that we started, by an address of this machine, which is seldom what its certificate names."""


async def until_ready(url: str) -> float:
    """Ask `GET url` until it answers 200; return the seconds it took. The caller sets the deadline."""
    return await _until(lambda: _get(url) is not None)


async def until_model_is_served(base_url: str, num_pairs: int, api_key: str | None) -> str:
    """Ask the gateway until so many pairs of workers (or mixed ones) take requests; return the model's name."""
    names: list[str] = []

    def ask() -> bool:
        info = json.loads(_get(f"{base_url}/get_server_info", api_key) or b"{}")
        names[:] = info.get("models", [])
        return bool(names) and info["num_pairs"] >= num_pairs

    await _until(ask)
    return names[0]


async def _until(ask: Callable[[], bool]) -> float:
    start = time.monotonic()
    while not await asyncio.to_thread(ask):  # noqa: ASYNC110 - another process, which sends us no event
        await asyncio.sleep(_ASK_EVERY_S)
    return time.monotonic() - start


def _get(url: str, api_key: str | None = None) -> bytes | None:
    """Return the body of a 200, None for anything else."""
    request = urllib.request.Request(url, headers={"x-api-key": api_key} if api_key else {})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S, context=_OWN_SERVER) as answer:
            return bytes(answer.read()) if answer.status == http.HTTPStatus.OK else None
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return None
