"""`GET /v1/models` and `GET /v1/models/{name}`, which OpenAI's API and Anthropic's have in common: a client that names
a version of Anthropic's gets models in that form."""

import datetime

import msgspec

from services.pd_master.api.anthropic.answers import ModelInfo, ModelPage
from services.pd_master.api.anthropic.wire import is_anthropic
from services.pd_master.api.http import HttpCall
from services.pd_master.api.openai.answers import ModelCard, ModelList
from services.pd_master.backend import ServedModel
from services.pd_master.gateway import Gateway

PREFIX = "/v1/models/"


class ModelsEndpoint:
    """Handler of the model list and of single models."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, call: HttpCall) -> None:
        """All models served now; none is an empty list."""
        served = self._gateway.models.models()
        page: ModelPage | ModelList = {"object": "list", "data": [self._card(model) for model in served]}
        if is_anthropic(call):
            page = {
                "data": [self._info(model) for model in served],
                "has_more": False,
                "first_id": None,
                "last_id": None,
            }
            if served:
                page["first_id"], page["last_id"] = served[0].name, served[-1].name
        await call.reply(200, msgspec.json.encode(page))

    async def one(self, call: HttpCall) -> None:
        """One model by its name, which may hold slashes. Raises ModelNotFoundError."""
        model = self._gateway.models.model(call.path.removeprefix(PREFIX))
        shown = self._info(model) if is_anthropic(call) else self._card(model)
        await call.reply(200, msgspec.json.encode(shown))

    def _info(self, model: ServedModel) -> ModelInfo:
        started = datetime.datetime.fromtimestamp(int(self._gateway.started_at), datetime.UTC)
        return {
            "type": "model",
            "id": model.name,
            "display_name": model.name,
            "created_at": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "max_input_tokens": model.max_context_tokens,
            "max_tokens": model.max_context_tokens,
        }

    def _card(self, model: ServedModel) -> ModelCard:
        return {
            "id": model.name,
            "object": "model",
            "created": int(self._gateway.started_at),
            "owned_by": "sluice",
            "max_model_len": model.max_context_tokens,
        }
