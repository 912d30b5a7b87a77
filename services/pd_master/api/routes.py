"""The table of all HTTP paths."""

from services.pd_master.api.anthropic.messages import MessagesEndpoint
from services.pd_master.api.anthropic.wire import anthropic_error
from services.pd_master.api.app import App, Route
from services.pd_master.api.console import ConsoleState, console_file
from services.pd_master.api.health import HealthEndpoint
from services.pd_master.api.models import PREFIX, ModelsEndpoint
from services.pd_master.api.native.generate import NativeEndpoint
from services.pd_master.api.native.info import InfoEndpoint
from services.pd_master.api.openai.chat import ChatEndpoint
from services.pd_master.api.openai.completions import CompletionsEndpoint
from services.pd_master.api.openai.tokenize import TokenizeEndpoint
from services.pd_master.api.openapi import OpenApiEndpoint
from services.pd_master.api.responses.responses import ResponsesEndpoint, earlier_response
from services.pd_master.gateway import Gateway
from services.pd_master.keys import ApiKeys


def build_app(gateway: Gateway, health: HealthEndpoint, keys: ApiKeys | None = None) -> App:
    """The whole API."""
    models = ModelsEndpoint(gateway)
    native = NativeEndpoint(gateway)
    info = InfoEndpoint(gateway)
    tokenize = TokenizeEndpoint(gateway)
    get = {
        "/": Route(console_file("index.html"), is_open=True),
        "/console/console.css": Route(console_file("console.css"), is_open=True),
        "/console/console.js": Route(console_file("console.js"), is_open=True),
        "/console/state": Route(ConsoleState(gateway)),
        "/health": Route(health.live, is_open=True),
        "/healthz": Route(health.live, is_open=True),
        "/liveness": Route(health.live, is_open=True),
        "/ping": Route(health.live, is_open=True),
        "/readiness": Route(health.readiness, is_open=True),
        "/metrics": Route(health.metrics, is_open=True),
        "/openapi.json": Route(OpenApiEndpoint(gateway), is_open=True),
        "/v1/models": Route(models),
        "/version": Route(info.version),
        "/token_load": Route(info.token_load),
        "/get_model_name": Route(info.model_name),
        "/get_server_info": Route(info.server_info),
    }
    messages = MessagesEndpoint(gateway)
    responses = ResponsesEndpoint(gateway)
    post = {
        "/v1/chat/completions": Route(ChatEndpoint(gateway)),
        "/v1/completions": Route(CompletionsEndpoint(gateway)),
        "/v1/responses": Route(responses),
        "/v1/responses/input_tokens": Route(responses.count),
        "/v1/messages": Route(messages, anthropic_error),
        "/v1/messages/count_tokens": Route(messages.count, anthropic_error),
        "/": Route(native.root),
        "/generate": Route(native.generate),
        "/generate_stream": Route(native.generate_stream),
        "/tokens": Route(info.tokens),
        "/tokenize": Route(tokenize.tokenize),
        "/detokenize": Route(tokenize.detokenize),
        "/get_model_name": Route(info.model_name),
    }
    routes = {path: {"GET": route} for path, route in get.items()}
    for path, route in post.items():
        routes.setdefault(path, {})["POST"] = route
    earlier = dict.fromkeys(("GET", "POST", "DELETE"), Route(earlier_response))
    prefixes = {PREFIX: {"GET": Route(models.one)}, "/v1/responses/": earlier}
    return App(routes, gateway.metrics, prefixes=prefixes, keys=keys)
