"""Files from a Python package index, fetched without pip: environments made by uv do not have it.

The caller gives a release file's name and its SHA-256. A file with another digest is not opened, and nothing
is installed or run. The index, its credentials and the certificates come from the settings of uv and pip.
"""

from __future__ import annotations

import base64
import configparser
import fcntl
import hashlib
import http.client
import io
import json
import netrc
import os
import re
import shutil
import ssl
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO
from urllib.parse import unquote, urljoin, urlsplit

from slipway.load.errors import LoadError

PYPI = "https://pypi.org/simple"
ETC = Path("/etc")
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
"""The system's certificates, in places where a Python built elsewhere does not look."""
TIMEOUT = 30.0
"""Seconds without an answer after which a connection counts as broken."""
DEADLINE = 3600.0
"""Seconds for one attempt: a server that sends a byte now and then never reaches the timeout."""
ATTEMPTS = 3
PAUSE = 1.0
"""Seconds before the second attempt, twice as many before the third."""
CHUNK = 1 << 20
LARGEST_PAGE = 64 << 20
"""Bytes."""
CHECK = "Check the network and the proxy, or name another index in UV_DEFAULT_INDEX or PIP_INDEX_URL"
LOG_IN = "Name an index in UV_DEFAULT_INDEX or PIP_INDEX_URL, with user and password if it wants them"
TRUST = "Name the file with your network's certificates in SSL_CERT_FILE"


@dataclass(frozen=True, slots=True)
class Release:
    """A wheel or a source archive (`NAME-VERSION.tar.gz`) on the index."""

    file: str
    sha256: str

    @property
    def project(self) -> str:
        """The project's name, with which the file's name begins, as it is spelled in an index's addresses."""
        return re.sub(r"[-_.]+", "-", self.file.partition("-")[0]).lower()


def fetch(release: Release, member: str, target: Path, *, instead: str = "") -> Path:
    """Put a file or a folder of the release at `target`, which is returned, unless it is there already.

    Safe to call from several processes at once: one fetches, the others wait. `target` appears whole or not
    at all. Raises LoadError, and OSError where `target` cannot be written.

    member   its path in the archive
    instead  what else the user can do if the index cannot be read
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryFile(dir=target.parent) as archive:  # nameless: it ends with the process
                _Index(instead).download(release, archive)
                _extract(archive, release, member, target)
    return target


def index_address() -> str:
    """The address of the package index, credentials included. Raises LoadError for an unreadable file."""
    named = re.sub(r"^[\w.-]+=", "", os.environ.get("UV_DEFAULT_INDEX", ""))  # NAME=ADDRESS is allowed
    return named or os.environ.get("UV_INDEX_URL") or _of_pip("index-url") or _of_uv() or PYPI


def _of_pip(option: str) -> str:
    """An option of pip from its environment variable or its files, in pip's order."""
    if given := os.environ.get("PIP_" + option.upper().replace("-", "_")):
        return given
    named = os.environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:  # to pip it means: read no file
        return ""
    user, system = _folders()
    files = [Path(named)] if named else []
    files += [Path(sys.prefix, "pip.conf"), user / "pip/pip.conf"]
    files += [Path(os.path.expanduser("~/.pip/pip.conf"))]
    files += [*(folder / "pip/pip.conf" for folder in system), ETC / "pip.conf"]
    read = [_PipFile(file) for file in files]
    for section in ("install", "global"):
        for file in read:
            if found := file.get(section, option, fallback=""):
                return found
    return ""


def _of_uv() -> str:
    """The default index in uv's files."""
    named = os.environ.get("UV_CONFIG_FILE", "")
    user, system = _folders()
    files = [Path(named)] if named else [user / "uv/uv.toml", *(folder / "uv/uv.toml" for folder in system)]
    for file in [*files, ETC / "uv/uv.toml"]:
        try:
            content = tomllib.loads(file.read_text())
        except OSError:
            continue
        except ValueError as error:
            raise _unreadable(file, error) from None
        listed = content.get("index")
        for index in listed if isinstance(listed, list) else []:
            if isinstance(index, dict) and index.get("default") is True and index.get("url"):
                return str(index["url"])
        if content.get("index-url"):
            return str(content["index-url"])
    return ""


class _PipFile(configparser.RawConfigParser):
    """A configuration file of pip; empty where there is none."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        try:
            self.read(file)
        except (configparser.Error, ValueError) as error:
            raise _unreadable(file, error) from None

    def optionxform(self, optionstr: str) -> str:
        return optionstr.lower().replace("_", "-").removeprefix("--")


def _unreadable(file: Path, error: Exception) -> LoadError:
    """Without what the file says, which may be a password."""
    return LoadError(
        "NoNetwork",
        f"The package index is unknown: {file} is malformed ({type(error).__name__}).",
        hint="Correct it, or name the index in UV_DEFAULT_INDEX.",
    )


def _folders() -> tuple[Path, list[Path]]:
    """The user's folder of configuration files, and the system's."""
    user = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    system = os.environ.get("XDG_CONFIG_DIRS") or str(ETC / "xdg")
    return Path(user), [Path(folder) for folder in system.split(os.pathsep) if folder]


def _certificates() -> ssl.SSLContext:
    """What servers' certificates are verified against. Raises LoadError for an unreadable file."""
    named = os.environ.get("SSL_CERT_FILE") or _of_pip("cert") or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        if named:
            folder = os.path.isdir(named)
            return ssl.create_default_context(
                cafile=None if folder else named, capath=named if folder else None
            )
        context = ssl.create_default_context()
        none = not context.cert_store_stats()["x509_ca"]  # or a folder of them: it is not counted
        if none and (bundle := next(filter(os.path.isfile, (*BUNDLES, *_certifi())), None)):
            context.load_verify_locations(bundle)
        return context
    except OSError as error:
        raise LoadError(
            "NoNetwork",
            f"The certificates in {named or 'the system'} cannot be read: {error.strerror or error}.",
            hint="Name another file in SSL_CERT_FILE.",
        ) from None


def _certifi() -> Iterator[str]:
    """The certificates in a package that most environments have."""
    try:
        import certifi
    except ImportError:
        return
    yield certifi.where()


class _Failed(Exception):
    """A request failed. The message follows the name of the host.

    passes  another attempt may succeed
    hint    what to do, if it is known
    """

    def __init__(self, why: str, *, passes: bool = False, hint: str = CHECK) -> None:
        super().__init__(why)
        self.passes = passes
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Page:
    """The address of an answer, after redirects, and its content type."""

    address: str
    kind: str


class _Credentials(urllib.request.BaseHandler):
    """Sends credentials to the index's own origin, and to no other that it links or redirects to."""

    def __init__(self, address: str, authorization: str) -> None:
        self._origin = _origin(address)
        self._authorization = authorization

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        if _origin(request.full_url) == self._origin:
            request.add_unredirected_header("Authorization", self._authorization)
        return request

    https_request = http_request


class _Https(urllib.request.AbstractHTTPHandler):
    """Reads the certificates when the first connection needs them, which takes 50 ms."""

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return _certificates()

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(http.client.HTTPSConnection, request, context=self._trusted)

    https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Index:
    """One package index. Every method raises LoadError."""

    def __init__(self, instead: str) -> None:
        self._instead = instead
        try:
            self.address, authorization = _split(index_address().rstrip("/"))
        except ValueError:
            self.address, authorization = "", ""
        if not self.address:
            raise LoadError(
                "NoNetwork",
                "The address of the package index is malformed.",
                hint="Give an http, https or file address in UV_DEFAULT_INDEX or PIP_INDEX_URL.",
            )
        proxy = _of_pip("proxy")
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
            urllib.request.HTTPHandler(),
            _Https(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)
        if authorization:
            self._opener.add_handler(_Credentials(self.address, authorization))

    def download(self, release: Release, target: io.BufferedRandom) -> None:
        """Write the release file to `target` if it has the digest that the caller knows."""
        self._get(self._find(release), "*/*", target, release)
        target.seek(0)
        found = hashlib.file_digest(target, "sha256").hexdigest()
        if found != release.sha256:
            raise LoadError(
                "BadCheckpoint",
                f"{release.file} from the package index {self.address} has the SHA-256 {found}, "
                f"and {release.sha256} is expected.",
                hint="Check the index, and the proxy on the way to it.",
            )

    def _find(self, release: Release) -> str:
        """The address of the release file."""
        content = io.BytesIO()
        page = self._get(f"{self.address}/{release.project}/", ACCEPT, content, release, LARGEST_PAGE)
        read = _json_links if page.kind.endswith("json") else _html_links
        try:
            links = list(read(content.getvalue(), page.address))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._error(release, "its list of files is malformed") from None
        schemes = ("http", "https", "file") if page.address.startswith("file:") else ("http", "https")
        for name, link in links:
            if name == release.file and urlsplit(link).scheme in schemes:
                return _without_user(link)
        raise self._error(release, "it does not list this file")

    def _get(
        self, address: str, accept: str, target: BinaryIO, release: Release, largest: float = float("inf")
    ) -> _Page:
        """Write the answer to `target`, after a few attempts where the connection breaks."""
        for attempt in range(1, ATTEMPTS + 1):
            target.seek(0)
            if attempt > 1:
                target.truncate()
            try:
                return self._answer(address, accept, target, largest)
            except _Failed as failed:
                if attempt == ATTEMPTS or not failed.passes:
                    host = urlsplit(address).netloc or "it"
                    raise self._error(release, f"{host} {failed}", failed.hint) from None
            time.sleep(PAUSE * attempt)
        raise AssertionError

    def _answer(self, address: str, accept: str, target: BinaryIO, largest: float) -> _Page:
        """Write the answer to one request. Raises _Failed, and OSError for `target` alone."""
        if address.startswith("file:"):
            return _local(address, target)
        end = time.monotonic() + DEADLINE
        with _network():
            request = urllib.request.Request(address, headers={"Accept": accept, "User-Agent": "slipway"})
            answer = self._opener.open(request, timeout=TIMEOUT)
        with answer:
            received, size = 0, answer.length  # None where it comes in chunks
            while size is None or received < size:
                with _network():
                    octets = answer.read1(CHUNK if size is None else min(CHUNK, size - received))
                    if not octets and size is not None:
                        raise ConnectionError("the connection ended early")
                    if time.monotonic() > end:
                        raise TimeoutError("it took too long")
                if not octets:
                    break
                target.write(octets)
                received += len(octets)
                if received > largest:
                    raise _Failed("sends an endless list of files")
            return _Page(answer.geturl(), answer.headers.get_content_type())

    def _error(self, release: Release, why: str, hint: str = CHECK) -> LoadError:
        return LoadError(
            "NoNetwork",
            f"{release.file} cannot be fetched from the package index {self.address}: {why}.",
            hint=f"{hint}{self._instead and f', or {self._instead}'}.",
        )


@contextmanager
def _network() -> Iterator[None]:
    """Turn the errors of the network and of the server into _Failed."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        why, passes = f"answers with HTTP status {error.code}", error.code in (408, 429) or error.code >= 500
        raise _Failed(why, passes=passes, hint=LOG_IN if error.code in (401, 403) else CHECK) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        why = f"cannot be read ({str(cause) or type(cause).__name__})"
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise _Failed(why, hint=TRUST) from None
        raise _Failed(why, passes=not isinstance(cause, ValueError | http.client.InvalidURL)) from None


def _local(address: str, target: BinaryIO) -> _Page:
    """The same as `_answer` for a file address: a folder stands for its index.html."""
    path = Path(unquote(urlsplit(address).path))
    path = path / "index.html" if path.is_dir() else path
    try:
        source = path.open("rb")
    except OSError as error:
        raise _Failed(f"has no readable file {path} ({error.strerror})") from None
    with source:
        shutil.copyfileobj(source, target, CHUNK)
    return _Page(address, "text/html")


def _split(address: str) -> tuple[str, str]:
    """The address without user and password, and the Authorization header for them, empty if there are none.

    They come from the address, else from the user's netrc file. Raises ValueError for a malformed address.
    """
    parts = urlsplit(address)
    host, _ = parts.hostname, parts.port
    if not (host if parts.scheme in ("http", "https") else parts.scheme == "file" and parts.path):
        raise ValueError
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if host and not user:
        try:
            entry = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
        except (OSError, netrc.NetrcParseError):
            entry = None
        user, password = (entry[0], entry[2] or "") if entry else ("", "")
    both = base64.b64encode(f"{user}:{password}".encode()).decode()
    return _without_user(address), f"Basic {both}" if user else ""


def _without_user(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _origin(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _json_links(content: bytes, address: str) -> Iterator[tuple[str, str]]:
    """Names and addresses of a project's files, from a page as PEP 691 defines it."""
    for file in json.loads(content)["files"]:
        yield str(file["filename"]), urljoin(address, str(file["url"]))


def _html_links(content: bytes, address: str) -> Iterator[tuple[str, str]]:
    """The same from a page as PEP 503 defines it."""
    page = _Links(address)
    page.feed(content.decode(errors="replace"))
    page.close()
    for link in page.links:
        yield PurePosixPath(unquote(urlsplit(link).path)).name, link


class _Links(HTMLParser):
    def __init__(self, address: str) -> None:
        super().__init__()
        self._base = address
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not (link := dict(attrs).get("href")):
            return
        if tag == "base":
            self._base = urljoin(self._base, link)
        elif tag == "a":
            self.links.append(urljoin(self._base, link))


def _extract(archive: BinaryIO, release: Release, member: str, target: Path) -> None:
    """Write a file or a folder of the archive beside `target`, then rename it."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    _remove(unfinished)  # of a process that was killed
    archive.seek(0)
    try:
        for place, source in (_of_wheel if release.file.endswith(".whl") else _of_sources)(archive, member):
            if place.is_absolute() or ".." in place.parts:
                raise _bad(release, f"has a file {place} outside the folder {member}")
            written = unfinished / place
            written.parent.mkdir(parents=True, exist_ok=True)
            with source, written.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        if not unfinished.exists():
            raise _bad(release, f"has no {member}")
        unfinished.replace(target)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise _bad(release, f"is not a valid archive ({error})") from None
    finally:
        _remove(unfinished)


def _of_wheel(archive: BinaryIO, member: str) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The member's files, each with its path below the member."""
    with zipfile.ZipFile(archive) as wheel:
        for info in wheel.infolist():
            if not info.is_dir() and (place := _below(info.filename, member)):
                yield place, wheel.open(info)


def _of_sources(archive: BinaryIO, member: str) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The same from a source archive. Links and devices are left out."""
    with tarfile.open(fileobj=archive) as sources:
        for entry in sources:
            place = _below(entry.name, member) if entry.isreg() else None
            if place and (content := sources.extractfile(entry)):
                yield place, content


def _below(name: str, member: str) -> PurePosixPath | None:
    """The path of a file below the member: "." for the member itself, None outside it."""
    if name == member:
        return PurePosixPath()
    return PurePosixPath(name[len(member) + 1 :]) if name.startswith(f"{member}/") else None


def _bad(release: Release, why: str) -> LoadError:
    return LoadError("BadCheckpoint", f"{release.file} {why}.")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main(words: Sequence[str]) -> int:
    """Fetch one member of one release file; the exit status."""
    if len(words) != 4:
        print("usage: python -m slipway.load.package_index FILE SHA256 MEMBER TARGET", file=sys.stderr)
        return 2
    file, sha256, member, target = words
    try:
        fetch(Release(file, sha256), member, Path(target))
    except (LoadError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
