"""An S3 bucket, or one of a store that speaks its protocol, with errors that say what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from slipway.envs.secrets import trimmed, unsendable
from slipway.load.errors import LoadError

KEYS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
"""Behind `AWS_`, or `S3_`: the older names are read where the others are not set."""
SIGNED_BY = (
    "AWS_ACCESS_KEY_ID",
    "S3_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables of which one is set where requests can be signed; without them nobody asks, and public
buckets answer."""
PATIENCE = timedelta(minutes=1)
"""How long a request is repeated where the store does not answer or fails."""
LONGEST_REQUEST = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a bucket."""

    key: str
    name: str
    """Its path below the prefix; empty where the prefix itself is the object."""
    size: int
    """In bytes."""
    etag: str


class Bucket:
    """The objects below a prefix.

    Credentials, region, endpoint and the authority of a private certificate come from the standard
    variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL,
    AWS_CA_BUNDLE, and those of a role of the service account. Where they are not set, the keys and the
    endpoint are those of S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY and S3_ENDPOINT_URL.
    """

    def __init__(self, uri: str, endpoint: str | None = None) -> None:
        """Raises LoadError where the client does not take what it is given."""
        import obstore
        from obstore import store

        self.uri = uri
        name, _, self.prefix = uri.removeprefix("s3://").strip("/").partition("/")
        self._obstore = obstore
        keys = _credentials()
        endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")
        endpoint = endpoint or next(filter(None, map(os.environ.get, endpoints)), None)
        client: Any = {
            "timeout": LONGEST_REQUEST,
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        }
        if authority := os.environ.get("AWS_CA_BUNDLE"):
            client["root_certificate"] = _certificate(authority)
        config: Any = keys | ({"endpoint": endpoint} if endpoint else {})
        if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            config["region"] = region
        if not any(trimmed(os.environ.get(variable, "")) for variable in SIGNED_BY):
            config["skip_signature"] = True
        with self._explained():
            self._store = store.S3Store(
                name,
                config=config,
                client_options=client,
                retry_config={"max_retries": 8, "retry_timeout": PATIENCE},
            )

    def entries(self) -> list[Entry]:
        """Every object below the prefix, or the one that it names. Raises LoadError where there is none."""
        with self._explained():
            found = [item for chunk in self._obstore.list(self._store, self.prefix or None) for item in chunk]
            if not found and self.prefix:
                found = [self._obstore.head(self._store, self.prefix)]
        entries = [self._entry(item) for item in found if not item["path"].endswith("/")]
        if not entries:
            raise self._absent()
        return entries

    def read(self, entry: Entry, start: int, end: int) -> bytes:
        """Bytes start ≤ i < end of the object. Raises LoadError, also where it is no longer the same."""
        options: dict[str, Any] = {"range": (start, end)}
        if entry.etag:
            options["if_match"] = entry.etag
        with self._explained():
            octets = bytes(self._obstore.get(self._store, entry.key, options=options).bytes())  # type: ignore[arg-type]
        if len(octets) != end - start:
            raise self._interrupted(f"{entry.key} ended after {start + len(octets)} of {entry.size} bytes")
        return octets

    def _entry(self, item: Mapping[str, Any]) -> Entry:
        key = str(item["path"])
        name = key.removeprefix(self.prefix).lstrip("/")
        if ".." in PurePosixPath(name).parts or "\0" in name:
            raise self._outside(key)
        return Entry(key, name, int(item["size"]), item["e_tag"] or "")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """The client's exceptions as ours."""
        from obstore import exceptions

        try:
            yield
        except (FileNotFoundError, exceptions.NotFoundError):
            raise self._absent() from None
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            raise self._gated() from None
        except exceptions.PreconditionError:
            raise self._interrupted("an object was replaced meanwhile") from None
        except exceptions.BaseError as error:
            # What goes wrong with a list of objects comes without a class of its own.
            if "404 Not Found" in str(error):
                raise self._absent() from None
            if "403 Forbidden" in str(error):
                raise self._gated() from None
            if found := re.search(r'parsing Path "(.*?)"', str(error)):
                raise self._outside(found[1]) from None
            raise LoadError(
                "NoNetwork",
                f"{self.uri} cannot be read: {_first_line(error)}",
                hint="Check the endpoint (spec.model.s3.endpoint, AWS_ENDPOINT_URL), the region "
                "(AWS_REGION), DNS, proxy and egress rules, and that the certificate's authority is trusted "
                "(spec.trustedCA, AWS_CA_BUNDLE).",
            ) from None

    def _gated(self) -> LoadError:
        return LoadError(
            "ModelGated",
            f"The store does not let these credentials, or nobody without any, read {self.uri}.",
            hint="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in a cluster the Secret that "
            "spec.model.s3.secret names, and what they may list and read.",
        )

    def _outside(self, key: str) -> LoadError:
        return LoadError(
            "BadCheckpoint",
            f"The object {key!r} of {self.uri} has a name that leads out of its folder or is no file's.",
            hint="Rename it, or name a folder that has only the model.",
        )

    def _absent(self) -> LoadError:
        return LoadError(
            "ModelNotFound",
            f"There is nothing at {self.uri}.",
            hint="Check the spelling of bucket and folder, and the endpoint.",
        )

    def _interrupted(self, why: str) -> LoadError:
        return LoadError(
            "Interrupted",
            f"The fetch of {self.uri} broke off: {why}.",
            hint="Start again: it continues where it stopped.",
        )


def _certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LoadError(
            "NoNetwork",
            f"AWS_CA_BUNDLE names {path}, which cannot be read: {error.strerror}.",
            hint="Mount the certificate there (spec.files), or unset the variable.",
        ) from None


def _first_line(error: BaseException) -> str:
    """What the client says, without its traces: they go over many lines."""
    line = next(iter(str(error).splitlines()), type(error).__name__).strip()
    return (line if len(line) <= 400 else line[:399] + "…").rstrip(".") + "."


def _credentials() -> dict[str, str]:
    """The keys by the client's names, empty where none are set; the older ones where the newer are not.

    Raises LoadError for half a pair, and for what no HTTP header carries.
    """
    for prefix in ("AWS_", "S3_"):
        names = [prefix + name for name in KEYS]
        given = [name for name in names if _sendable(name)]
        if len(given) == 1:
            raise LoadError(
                "ModelGated",
                f"Of {names[0]} and {names[1]} only {given[0]} is set.",
                hint="Set both, in a cluster in the Secret that spec.model.s3.secret names, or neither.",
            )
        if given:
            found = {name.lower(): _sendable(prefix + name) for name in KEYS}
            token = _sendable("AWS_SESSION_TOKEN")  # goes with keys that expire
            return found | ({"session_token": token} if token else {})
    return {}


def _sendable(variable: str) -> str:
    value = trimmed(os.environ.get(variable, ""))
    if reason := unsendable(value):
        raise LoadError("ModelGated", f"{variable} {reason}")
    return value
