"""`POST /generate`, `/generate_stream` and `/`."""

import msgspec

from services.pd_master.api.choices import gather
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, UntilDisconnect
from services.pd_master.api.native.request import build_request, check_body
from services.pd_master.api.native.schema import GenerateBody, RootBody
from services.pd_master.api.native.wire import NativeEvents, whole_answer, with_prompt
from services.pd_master.api.parse import BodyParser
from services.pd_master.gateway import Gateway, now

_parse = BodyParser(GenerateBody)
_parse_root = BodyParser(RootBody)


class NativeEndpoint:
    """Handlers of native generation. Called by the app on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def generate(self, call: HttpCall) -> None:
        """The whole output at once."""
        arrived = now()
        await self._answer(call, _parse(await self._body(call)), stream=False, arrived=arrived)

    async def generate_stream(self, call: HttpCall) -> None:
        """An event per token."""
        arrived = now()
        await self._answer(call, _parse(await self._body(call)), stream=True, arrived=arrived)

    async def root(self, call: HttpCall) -> None:
        """Either of them, by the body's `stream`."""
        arrived = now()
        body = _parse_root(await self._body(call))
        await self._answer(call, body, stream=body.stream, arrived=arrived)

    async def _body(self, call: HttpCall) -> bytes:
        return await call.body(self._gateway.config.max_body_bytes)

    async def _answer(self, call: HttpCall, body: GenerateBody, *, stream: bool, arrived: float) -> None:
        check_body(body, stream=stream)
        async with UntilDisconnect(call):
            target = await self._gateway.target(body.model)
            request = await self._gateway.tokenizers.run_for(
                call.size, build_request, body, target, self._gateway.config, call.label
            )
            live = await self._gateway.start(request, api="native", arrived=arrived)
            call.name_answer(request.request_id)
            try:
                if stream:
                    await stream_events(call, live, NativeEvents(live, target.text), live.listen)
                    return
                choices = await gather(live, request.num_choices)
                details = body.parameters.return_details or False
                answer = whole_answer(live, choices, target.text, details=details)
                if live.prompt_logprobs is None:
                    await call.reply(200, msgspec.json.encode(answer))
                else:
                    await call.reply(200, await self._gateway.tokenizers.run(with_prompt, answer, live, target.text))
            finally:
                await live.aclose()
