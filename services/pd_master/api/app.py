"""The application behind the HTTP server: finds the handler of a request, turns its errors into answers and counts what
happened."""

import difflib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

from services.common.errors import SluiceError
from services.pd_master.api.anthropic.wire import anthropic_error, is_anthropic
from services.pd_master.api.errors import ErrorShape, openai_error, retry_after
from services.pd_master.api.http import ClientGoneError, HttpCall
from services.pd_master.keys import ApiKeys, current_key
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.tracing import note_parent

log = logging.getLogger(__name__)

_MAX_SHOWN = 100
"""Characters of a client's own words in an answer or a line of the log."""

Handler: TypeAlias = Callable[[HttpCall], Awaitable[None]]


class Route(NamedTuple):
    """Who answers a path, and how its API writes errors."""

    handler: Handler
    errors: ErrorShape = openai_error
    is_open: bool = False
    """Answers without an API key: probes and metrics."""


class NotFoundError(SluiceError):
    """No such path."""

    code = "not_found"
    http_status = 404
    grpc_status = "UNIMPLEMENTED"


class MethodNotAllowedError(SluiceError):
    """The path exists, with another method."""

    code = "method_not_allowed"
    http_status = 405
    grpc_status = "UNIMPLEMENTED"


class App:
    """All HTTP routes of the gateway. Called by the connections, once for each request."""

    def __init__(
        self,
        routes: dict[str, dict[str, Route]],
        metrics: GatewayMetrics,
        prefixes: dict[str, dict[str, Route]] | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        """`routes`: path -> method -> route. `prefixes`: the same for paths that begin so and go on. `keys`: None where
        everybody may come."""
        self._routes = routes
        self._prefixes = prefixes or {}
        self._metrics = metrics
        self._keys = keys
        self._not_found = Route(self._no_such_path)

    async def __call__(self, call: HttpCall) -> None:
        """One HTTP request."""
        route = self._route(call)
        note_parent(call.header(b"traceparent"))
        if call.label:
            call.name_answer(call.label)
        try:
            if self._keys is not None and not route.is_open:
                self._keys.admit(call.header(b"authorization"), call.header(b"x-api-key"))
            await route.handler(call)
        except ClientGoneError:
            call.status = 499  # in the counts only
        except SluiceError as error:
            _log_refusal(call, error)
            await _reply_error(call, route, error)
        except Exception:
            log.exception("handler of %s %s failed", call.method, call.path)
            await _reply_error(call, route, SluiceError("an internal error occurred"))
        known = call.path if call.path in self._routes else "other"
        self._metrics.count_http(known, call.status)

    def paths(self) -> dict[str, list[str]]:
        """Every exact path with its methods."""
        return {path: list(methods) for path, methods in self._routes.items()}

    def _route(self, call: HttpCall) -> Route:
        methods = self._routes.get(call.path) or self._by_prefix(call.path)
        if methods is None:
            return self._not_found
        route = methods.get("GET" if call.method == "HEAD" else call.method)
        if route is None:
            is_open = call.method == "OPTIONS"
            return Route(_other_method(methods), next(iter(methods.values())).errors, is_open)
        return route

    async def _no_such_path(self, call: HttpCall) -> None:
        path = call.path[:_MAX_SHOWN]
        near = difflib.get_close_matches(path, self._routes, n=1, cutoff=0.8)
        raise NotFoundError(f"no such path: {path}" + (f"; did you mean {near[0]}?" if near else ""))

    def _by_prefix(self, path: str) -> dict[str, Route] | None:
        for prefix, methods in self._prefixes.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return methods
        return None


def _log_refusal(call: HttpCall, error: SluiceError) -> None:
    """A client's mistake, for whoever is asked about it. Without the message, which may quote the request."""
    if error.http_status >= 500 or error.http_status == 429:
        return  # these are counted, and told of where they come from
    fields = (error.param or "")[:_MAX_SHOWN], current_key.get() or "-", call.label or "-"
    what = call.method, call.path[:_MAX_SHOWN], error.http_status, error.code
    log.info("%s %r refused: %d %s param=%r key=%s client_id=%r", *what, *fields)


async def _reply_error(call: HttpCall, route: Route, error: SluiceError) -> None:
    if call.finished:
        return
    if call.started:  # a failure inside a stream is written by the stream's own handler
        await call.end()
        return
    call.headers_out += retry_after(error)
    shape = anthropic_error if is_anthropic(call) else route.errors
    await call.reply(error.http_status, shape(error))


def _other_method(methods: Iterable[str]) -> Handler:
    """Says which methods a path has: to OPTIONS as an answer, to any other as an error."""
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"}))

    async def handler(call: HttpCall) -> None:
        call.headers_out.append((b"allow", allowed.encode()))
        if call.method != "OPTIONS":
            raise MethodNotAllowedError(f"{call.path} does not answer {call.method}, only {allowed}")
        await call.reply_empty()

    return handler
