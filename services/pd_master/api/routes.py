"""The table of all HTTP paths."""

from services.pd_master.api.app import App, Route
from services.pd_master.api.health import HealthEndpoint
from services.pd_master.api.openai.chat import ChatEndpoint
from services.pd_master.api.openai.completions import CompletionsEndpoint
from services.pd_master.api.openai.models import PREFIX, ModelsEndpoint
from services.pd_master.gateway import Gateway


def build_app(gateway: Gateway, health: HealthEndpoint) -> App:
    """The whole API."""
    models = ModelsEndpoint(gateway)
    get = {
        "/health": Route(health.live),
        "/healthz": Route(health.live),
        "/liveness": Route(health.live),
        "/readiness": Route(health.readiness),
        "/metrics": Route(health.metrics),
        "/v1/models": Route(models),
    }
    post = {
        "/v1/chat/completions": Route(ChatEndpoint(gateway)),
        "/v1/completions": Route(CompletionsEndpoint(gateway)),
    }
    routes = {path: {"GET": route} for path, route in get.items()}
    for path, route in post.items():
        routes.setdefault(path, {})["POST"] = route
    return App(routes, gateway.metrics, prefixes={PREFIX: {"GET": Route(models.one)}})
