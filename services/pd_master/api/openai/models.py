"""`GET /v1/models` and `GET /v1/models/{name}`."""

import msgspec

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
        models = [self._shown(model) for model in self._gateway.models.models()]
        answer: ModelList = {"object": "list", "data": models}
        await call.reply(200, msgspec.json.encode(answer))

    async def one(self, call: HttpCall) -> None:
        """One model by its name, which may hold slashes. Raises ModelNotFoundError."""
        model = self._gateway.models.model(call.path.removeprefix(PREFIX))
        await call.reply(200, msgspec.json.encode(self._shown(model)))

    def _shown(self, model: ServedModel) -> ModelCard:
        return {
            "id": model.name,
            "object": "model",
            "created": int(self._gateway.started_at),
            "owned_by": "sluice",
            "max_model_len": model.max_context_tokens,
        }
