"""The console page at `/`: its files, and the state that it shows."""

from importlib import metadata, resources

import msgspec

from services.pd_master.api.app import Handler
from services.pd_master.api.http import HttpCall
from services.pd_master.api.native.answers import ConsoleView
from services.pd_master.gateway import Gateway

_TYPES = {
    "index.html": b"text/html; charset=utf-8",
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
}
_POLICY = b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
"""Nothing from elsewhere, and nothing inside: model output can never run."""


def console_file(name: str) -> Handler:
    """A handler that answers with one file of the page, read once."""
    content = (resources.files("services.pd_master.console") / name).read_bytes()

    async def handler(call: HttpCall) -> None:
        call.headers_out += [(b"content-security-policy", _POLICY), (b"cache-control", b"no-cache")]
        await call.reply(200, content, _TYPES[name])

    return handler


class ConsoleState:
    """What the page shows, once a second for each that is open."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._version = metadata.version("sluice")

    async def __call__(self, call: HttpCall) -> None:
        """Workers with their load, this master's requests by stage, and the models."""
        models = self._gateway.models
        state: ConsoleView = {
            "version": self._version,
            "models": [model.name for model in models.models()],
            "num_pairs": models.num_pairs(),
            "stages": self._gateway.stages(),
            "output_tokens": self._gateway.metrics.tokens.num_tokens,
            "workers": models.workers(),
        }
        await call.reply(200, msgspec.json.encode(state))
