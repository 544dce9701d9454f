"""The API server: paths of kinds, one call, one watch stream.

The official client gives configuration, credentials that rotate and the connection pool; bodies stay plain
dictionaries, since a typed model of every object would cost more memory than all our objects together.
Everything here blocks: call it from a thread (`Cluster.ask` does).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

Object = dict[str, Any]
Kept = TypeVar("Kept")

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 8.0
"""Also the deadline that the server is given, so that no write takes effect after we gave it up."""
MAX_STREAMS = 256
PAGE = 250


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource type of the API."""

    name: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None, part: str | None = None) -> str:
        """Of all objects, of those of one namespace, of one object, or of one subresource."""
        words = [self.root, *(["namespaces", namespace] if namespace else []), self.plural]
        return "/".join([*words, *([name] if name else []), *([part] if part else [])])


SERVICE = Kind("InferenceService", "slipway.dev", "v1alpha1", "inferenceservices")
PROFILE = Kind("ServingProfile", "slipway.dev", "v1alpha1", "servingprofiles")
LEASE = Kind("Lease", "coordination.k8s.io", "v1", "leases")
NODE = Kind("Node", "", "v1", "nodes")
CLAIM = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
POD_EVENT = Kind("Event", "", "v1", "events")
EVENT = Kind("Event", "events.k8s.io", "v1", "events")

MADE = (
    Kind("ControllerRevision", "apps", "v1", "controllerrevisions"),
    Kind("Service", "", "v1", "services"),
    Kind("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
    Kind("Deployment", "apps", "v1", "deployments"),
    Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
)
"""What we always may make, in the order of making: a Deployment's template, and who reaches its pods, stand
before it."""
OPTIONAL = (
    Kind("ServiceMonitor", "monitoring.coreos.com", "v1", "servicemonitors"),
    Kind("PodMonitor", "monitoring.coreos.com", "v1", "podmonitors"),
)
SEEN = (
    Kind("ReplicaSet", "apps", "v1", "replicasets"),
    Kind("Pod", "", "v1", "pods"),
)
"""What Kubernetes makes from ours."""
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (*MADE, *OPTIONAL, *SEEN)}


class Unreachable(Exception):
    """No answer from the API server: refused, cut or too late. What was asked may have happened."""


class Untrusted(Unreachable):
    """No TLS with what answers: as far as we know, its certificate is none of the cluster's."""


class Refused(Exception):
    """An answer that is no success. `status` is HTTP's, `reason` and the text are the API server's."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the API server. `patience`: seconds without a byte of the answer."""

    method: str
    path: str
    query: Mapping[str, Any]
    body: object = None
    content: str = JSON
    accept: str = JSON
    patience: float = ANSWER_SECONDS


class Cluster:
    """Answers of one API server. Safe to use from many threads."""

    def __init__(self, configuration: Any = None) -> None:
        """Where none is given: the pod's own service account, else the kubeconfig. Raises ConfigException."""
        self._given = configuration
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="api")
        self.calls: Counter[tuple[str, int]] = Counter()
        """Answers by method and status; status 0 counts calls without an answer."""
        self.answered_at = 0.0
        """By the monotonic clock: when the API server last answered anything."""
        self.unanswered_at = 0.0
        """When it last did not."""
        self.trusted_again: Callable[[], None] = lambda: None
        """Called, in any thread, at the first answer after certificates that we did not trust: whoever reads
        the authority's only once must read it anew."""
        self._distrusted = False
        self._connect()

    def _connect(self) -> None:
        self._configuration = self._given or _load()
        self._configuration.connection_pool_maxsize = MAX_STREAMS
        self._pool: Any = client.ApiClient(self._configuration).rest_client.pool_manager

    async def ask(self, *arguments: Any, **named: Any) -> Object:
        """`call` off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self.call(*arguments, **named))

    async def find(self, path: str) -> Object | None:
        """The object at this path, or None where there is none. Raises as `call` but for a 404."""
        try:
            return await self.ask("GET", path)
        except Refused as problem:
            if problem.status != 404:
                raise
            return None

    async def ask_for_all(
        self,
        path: str,
        keep: Callable[[Object], Kept],
        accept: str = JSON,
        query: Mapping[str, Any] | None = None,
    ) -> list[Kept]:
        """What `keep` leaves of each item of a list, off the event loop. Raises as `call`."""

        def read() -> list[Kept]:
            pages = self.pages(path, query, accept)
            return [keep(item) for page in pages for item in page.get("items") or ()]

        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def pages(
        self, path: str, query: Mapping[str, Any] | None = None, accept: str = JSON
    ) -> Iterator[Object]:
        """A list in parts, so that neither side holds all of it at once. Raises as `call`."""
        query = {**(query or {}), "limit": PAGE}
        while True:
            page = self.call("GET", path, query, accept=accept)
            yield page
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> Object:
        """The object in the answer. Raises Refused and Unreachable."""
        query = {**(query or {}), "timeout": f"{int(ANSWER_SECONDS)}s"}
        response = self._send(Request(method, path, query, body, content, accept))
        try:
            parsed: Object = json.loads(response.data)
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise Unreachable(f"{method} {path}: {error}") from None
        return parsed

    def stream(self, path: str, query: Mapping[str, Any], silence: float) -> Iterator[Object]:
        """Events of a watch until the server ends it or says nothing for `silence` seconds.

        Raises Refused, and Unreachable where the connection breaks.
        """
        response = self._send(Request("GET", path, {**query, "watch": "true"}, patience=silence))
        rest = b""
        try:
            for chunk in response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        except urllib3.exceptions.ReadTimeoutError:
            return
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unreachable(f"watch {path}: {error}") from None
        finally:
            response.close()

    def _send(self, request: Request) -> Any:
        try:
            response = self._try(request)
        except Untrusted:  # the authority was replaced: read it anew, once, as a token
            self._distrusted = True
            response = self._try_with_credentials_read_anew(request)
        if response.status == 401:  # the token was rotated or revoked
            response.close()
            response = self._try_with_credentials_read_anew(request)
        self.answered_at = time.monotonic()
        self.calls[request.method, response.status] += 1
        if self._distrusted:
            self._distrusted = False
            self.trusted_again()
        if response.status >= 400:
            raise _refusal(response)
        return response

    def _try_with_credentials_read_anew(self, request: Request) -> Any:
        with self._lock:
            self._connect()
        return self._try(request)

    def _try(self, request: Request) -> Any:
        configuration = self._configuration
        headers = {"Accept": request.accept, "User-Agent": "slipway-operator"}
        if token := configuration.auth_settings().get("BearerToken"):
            headers["Authorization"] = token["value"]
        if request.body is not None:
            headers["Content-Type"] = request.content
        try:
            return self._pool.request(
                request.method,
                f"{configuration.host}{request.path}?{urlencode(request.query)}",
                body=None if request.body is None else json.dumps(request.body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=request.patience),
                retries=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self.unanswered_at = time.monotonic()
            self.calls[request.method, 0] += 1
            kind = Untrusted if isinstance(error, urllib3.exceptions.SSLError) else Unreachable
            raise kind(f"{request.method} {request.path}: {error}") from None


def _load() -> Any:
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


def _refusal(response: Any) -> Refused:
    try:
        text = response.data
    except (urllib3.exceptions.HTTPError, OSError):
        text = b""
    try:
        said = json.loads(text)
        return Refused(response.status, str(said.get("reason") or ""), str(said.get("message") or ""))
    except (ValueError, AttributeError):
        return Refused(response.status, "", text[:500].decode("utf-8", "replace"))
