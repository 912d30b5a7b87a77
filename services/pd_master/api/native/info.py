"""`/tokens`, `/token_load`, `/get_model_name`, `/get_server_info` and `/version`."""

from importlib import metadata

import msgspec

from services.common.errors import NoWorkerError
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.native.answers import Load, ModelName, NumTokens, ServerInfo, Version
from services.pd_master.api.native.schema import TokensBody
from services.pd_master.api.parse import BodyParser
from services.pd_master.gateway import Gateway

_parse = BodyParser(TokensBody)


class InfoEndpoint:
    """Handlers of what the native API tells about text, load and server."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def tokens(self, call: HttpCall) -> None:
        """Counts the tokens of a text, special ones as the parameters say."""
        body = _parse(await call.body(self._gateway.config.max_body_bytes))
        special = body.parameters.add_special_tokens is not False
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            ids = await self._gateway.tokenizers.run(lambda: target.text.encode(body.text, add_special_tokens=special))
            counted: NumTokens = {"ntokens": len(ids)}
            await call.reply(200, msgspec.json.encode(counted))

    async def token_load(self, call: HttpCall) -> None:
        """Load of the fullest stage as shares of its KV slots: held now, peak of what is in, peak with what waits."""
        load = self._gateway.models.token_load()
        answer: Load = {
            "current_load": load.current,
            "logical_max_load": load.admitted_peak,
            "dynamic_max_load": load.demand,
        }
        await call.reply(200, msgspec.json.encode(answer))

    async def model_name(self, call: HttpCall) -> None:
        """The model's name; with several, the first one's. Raises NoWorkerError before any is known."""
        models = self._gateway.models.models()
        if not models:
            raise NoWorkerError("no worker has reported a model yet")
        answer: ModelName = {"model_name": models[0].name}
        await call.reply(200, msgspec.json.encode(answer))

    async def version(self, call: HttpCall) -> None:
        """Of Sluice."""
        answer: Version = {"version": metadata.version("sluice")}
        await call.reply(200, msgspec.json.encode(answer))

    async def server_info(self, call: HttpCall) -> None:
        """Version, options in force, models, and how many pairs of workers take requests now."""
        config = msgspec.to_builtins(self._gateway.config)
        models = [model.name for model in self._gateway.models.models()]
        pairs = self._gateway.models.num_pairs()
        answer: ServerInfo = {
            "name": "sluice",
            "version": metadata.version("sluice"),
            "models": models,
            "num_pairs": pairs,
        }
        await call.reply(200, msgspec.json.encode({**answer, **config}))
