"""List and watch pods at the Kubernetes API server, as an HTTP client on the event loop."""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from services.common.options import ConfigError
from services.pd_master.pod_cache import Manifest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_GONE = 410
_OK = 200


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
    """Where the API server is and how this pod proves who it is. The token is read anew each time, since it rotates."""

    url: str
    token_file: Path | None
    ca_file: Path | None

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
    """Pods of one namespace with certain labels. Used by discovery; one request at a time."""

    def __init__(self, access: ApiAccess, namespace: str, selector: str, *, silence_s: float = 90.0) -> None:
        """A watch on which nothing comes for `silence_s`, no bookmark either, counts as broken."""
        self._access = access
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = {"labelSelector": selector}
        verify = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True
        timeout = httpx2.Timeout(10.0, read=silence_s)
        self._client = httpx2.AsyncClient(base_url=access.url, verify=verify, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def list(self) -> Listing:
        """All pods now. Raises ApiError."""
        async with _named_errors(), asyncio.timeout(30.0):
            answer = await self._client.get(self._path, params=self._selector, headers=await self._headers())
            _check(answer.status_code, answer.text)
            body = json.loads(answer.content)
            return Listing(body["items"], body["metadata"]["resourceVersion"])

    async def watch(self, resource_version: str, timeout_s: int) -> AsyncGenerator[Event, None]:
        """Changes after `resource_version`, until the server ends the watch after `timeout_s`.

        Raises ApiError: reason `gone` when the server no longer knows that version.
        """
        options = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        params = self._selector | options | {"resourceVersion": resource_version}
        async with (
            _named_errors(),
            self._client.stream("GET", self._path, params=params, headers=await self._headers()) as answer,
        ):
            if answer.status_code != _OK:
                _check(answer.status_code, (await answer.aread()).decode(errors="replace"))
            async for line in answer.aiter_lines():
                if line:
                    yield _event(json.loads(line))

    async def _headers(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        token = await asyncio.to_thread(self._access.token_file.read_text)
        return {"Authorization": f"Bearer {token.strip()}"}


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
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:  # TimeoutError is an OSError
        raise ApiError("unreachable", f"{type(error).__name__} {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError("unreadable", f"{type(error).__name__} {error}") from error
