"""List and watch pods through the Kubernetes client, on the event loop.

Answers are taken as the server's own JSON: building the client's typed models of every pod would cost more than reading
the few fields that discovery needs.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client

from services.common.options import ConfigError
from services.pd_master.pod_cache import Manifest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_GONE = 410
_OK = 200
_ANSWER_S = 30.0
"""How long the server may take for a list, or to begin a watch."""


class ApiError(Exception):
    """The API server could not be asked, or said no. `reason` is one of a few words, for a metric."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Listing(NamedTuple):
    """All pods at one moment."""

    pods: list[Manifest]
    resource_version: str


class Event(NamedTuple):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    manifest: Manifest

    @property
    def resource_version(self) -> str:
        """Where a watch goes on after this event."""
        return str(self.manifest["metadata"]["resourceVersion"])


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is and how this pod proves who it is."""

    url: str
    token_file: Path | None
    ca_file: Path | None

    def configuration(self) -> client.Configuration:
        """For the client. The token is read anew for each request, since it rotates."""
        configuration = client.Configuration(host=self.url, ssl_ca_cert=str(self.ca_file) if self.ca_file else None)
        configuration.client_session_kwargs = {"trust_env": False}  # the API server is never behind a proxy
        if self.token_file is not None:
            configuration.api_key["BearerToken"] = ""
            configuration.refresh_api_key_hook = self._refresh  # type: ignore[assignment]  # the client's hint is None
        return configuration

    async def _refresh(self, configuration: client.Configuration) -> None:
        assert self.token_file is not None
        token = await asyncio.to_thread(self.token_file.read_text)
        configuration.api_key["BearerToken"] = f"Bearer {token.strip()}"

    @classmethod
    def of_this_pod(cls) -> "ApiAccess":
        """From what Kubernetes gives every pod. Raises ConfigError outside of one."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port or not (SERVICE_ACCOUNT / "token").exists():
            raise ConfigError("--discovery: kubernetes is only possible inside a pod with a service account's token")
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt")


def own_namespace() -> str:
    """The namespace of this pod. Raises ConfigError outside of one."""
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigError(f"--namespace must be given: {error}") from error


class PodApi:
    """Pods of one namespace with certain labels. Made and used on an event loop, by discovery."""

    def __init__(self, access: ApiAccess, namespace: str, selector: str, *, silence_s: float = 90.0) -> None:
        """A watch on which nothing comes for `silence_s`, no bookmark either, counts as broken."""
        self._client = client.ApiClient(access.configuration())
        self._core = client.CoreV1Api(self._client)
        self._namespace, self._selector = namespace, selector
        self._silence_s = silence_s

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def list(self) -> Listing:
        """All pods now. Raises ApiError."""
        async with _named_errors(), asyncio.timeout(_ANSWER_S):
            answer = await self._core.list_namespaced_pod_without_preload_content(
                self._namespace, label_selector=self._selector
            )
            text = await answer.read()
            _check(answer.status, text.decode(errors="replace"))
            body = json.loads(text)
            return Listing(body["items"], body["metadata"]["resourceVersion"])

    async def watch(self, resource_version: str, timeout_s: int) -> AsyncGenerator[Event, None]:
        """Changes after `resource_version`, until the server ends the watch after `timeout_s`.

        Raises ApiError: reason `gone` when the server no longer knows that version.
        """
        async with _named_errors(), await self._open_watch(resource_version, timeout_s) as answer:
            if answer.status != _OK:
                _check(answer.status, (await answer.read()).decode(errors="replace"))
            while line := await asyncio.wait_for(answer.content.readline(), self._silence_s):
                yield _event(json.loads(line))

    async def _open_watch(self, resource_version: str, timeout_s: int) -> aiohttp.ClientResponse:
        async with asyncio.timeout(_ANSWER_S):
            answer: aiohttp.ClientResponse = await self._core.list_namespaced_pod_without_preload_content(
                self._namespace,
                label_selector=self._selector,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=timeout_s,
                resource_version=resource_version,
                _request_timeout=timeout_s + self._silence_s,
            )
            return answer


def _event(line: dict[str, Any]) -> Event:
    if line["type"] == "ERROR":
        status = line["object"]
        _check(int(status.get("code") or 500), str(status.get("message")))
    return Event(line["type"], line["object"])


def _check(status: int, text: str) -> None:
    if status == _GONE:
        raise ApiError("gone", text[:200])
    if status != _OK:
        raise ApiError("refused" if status in {401, 403} else "status", f"{status} {text[:200]}")


@contextlib.asynccontextmanager
async def _named_errors() -> AsyncIterator[None]:
    try:
        yield
    except client.ApiException as error:
        _check(int(error.status or 500), str(error.reason))
        raise ApiError("status", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        raise ApiError("unreachable", f"{type(error).__name__} {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError("unreadable", f"{type(error).__name__} {error}") from error
