"""A store on this machine, and a way to it that counts requests and can fail."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from moto.server import ThreadedMotoServer
from tests.support.object_servers import AZURE_ACCOUNT, AZURE_KEY, BUCKET, S3_KEY, object_server

from kafkalog.streaming.options.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.files.storage import RemoteRoot

__all__ = ["Fault", "Losses", "ObjectStore", "Request", "object_store"]

_SOMEBODY: Final = "AWS4-HMAC-SHA256 Credential=an-id/20250101/us-east-1/s3/aws4_request"


@dataclass(frozen=True)
class Request:
    """One request as it arrived, and what went back."""

    method: str
    path: str
    start: int
    """Of the range asked for; -1 without one."""
    body_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of the object's name; empty for a listing."""
        return self.path.partition("?")[0].rpartition("/")[2]


Fault = Callable[[Request], str | None]
"""What goes wrong with a request; None if nothing does.

Its answer: ``500``, ``403``, ``reset``, ``short`` or ``silence``. Before it arrives: ``lost`` (the
connection ends), ``404`` (the upload), ``409``, ``503``, ``500 before``, ``expired`` (the keys), or
``late``: as ``lost``, and it arrives when some more requests have, or at
:meth:`ObjectStore.reset`.
"""
_LATE_BY: Final = 7


class Losses:
    """A fault of four requests of ten, before or after the store has done what they ask.

    What writes has each kind of fault in turn.
    """

    def __init__(self) -> None:
        self._chance = Random(7)
        self._lock = threading.Lock()
        self._writes = 0
        self.count: Counter[str] = Counter()
        """How often what has happened to requests that write."""

    def __call__(self, request: Request) -> str | None:
        """See :data:`Fault`."""
        kinds = ["500", "500 before", "503", "reset", "lost"]
        with self._lock:
            if request.method != "PUT":
                return self._chance.choice(kinds) if self._chance.random() < 0.4 else None
            self._writes += 1
            if self._writes % 5 not in {2, 4}:
                return None
            kinds += ["409", "late"]
            kind = kinds[self.count.total() % len(kinds)]
            self.count[kind] += 1
            return kind


@dataclass
class ObjectStore:
    """The server, as its users reach it: through a proxy that keeps a list of requests."""

    endpoint: str
    _server: int
    _kind: str = "moto"
    requests: list[Request] = field(default_factory=list)
    fault: Fault | None = None
    creating: threading.Lock = field(default_factory=threading.Lock)
    late: list[tuple[int, Request, bytes]] = field(default_factory=list)
    """What is still to arrive, and after how many requests in all."""

    @property
    def options(self) -> dict[str, str]:
        """What a query needs to reach it."""
        if self._kind == "azurite":
            return {
                "storage.endpoint": f"{self.endpoint}/{AZURE_ACCOUNT}",
                "storage.accountName": AZURE_ACCOUNT,
                "storage.accountKey": AZURE_KEY,
            }
        return {
            "storage.endpoint": self.endpoint,
            "storage.region": "us-east-1",
            "storage.accessKey": S3_KEY[0],
            "storage.secretKey": S3_KEY[1],
        }

    def past_the_proxy(self) -> ObjectStore:
        """Return the server as it is reached without the proxy."""
        return replace(self, endpoint=f"http://127.0.0.1:{self._server}")

    def place(self, prefix: str, **options: str) -> RemoteRoot:
        """Return what lies below a prefix, with what is needed to reach it."""
        given = {"path": self.uri(prefix), "subscribe": "t", **self.options, **options}
        return ReadOptions.parse(given).paths[0]  # type: ignore[return-value]

    def uri(self, prefix: str = "") -> str:
        """Return the URI of what :meth:`upload` has put under a prefix."""
        scheme = "az" if self._kind == "azurite" else "s3"
        return f"{scheme}://{BUCKET}/{prefix}".rstrip("/")

    def whole_uri(self, prefix: str) -> str:
        """Return the URI of a prefix with all that is needed to reach it; of S3 alone."""
        reached = urlencode({"endpoint": self.endpoint, "region": "us-east-1"})
        return f"s3://{':'.join(S3_KEY)}@{BUCKET}/{prefix}?{reached}"

    def make_bucket(self) -> None:
        """Make the bucket, with nothing in it; other servers begin with it."""
        if self._kind == "moto":
            self._ask("PUT", f"/{BUCKET}", b"", {"Authorization": _SOMEBODY}, {200})
        elif self._kind == "azurite":
            path, query = f"/{AZURE_ACCOUNT}/{BUCKET}", "?restype=container"
            signed = _signed_by_shared_key("PUT", path, "restype:container")
            self._ask("PUT", path + query, b"", signed, {201})

    def _ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], expected: set[int]
    ) -> None:
        """Ask the server, past the proxy."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._server, timeout=60)) as server:
            server.request(method, path, body, dict(headers))
            answer = server.getresponse()
            assert answer.status in expected, (answer.status, path, answer.read())

    def upload(self, folder: Path, prefix: str) -> None:
        """Copy all files of a folder, past the proxy."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = {f"/{prefix}/{path.relative_to(folder)}": path for path in files}
        for name in ("", *names):
            body = names[name].read_bytes() if name else b""
            path = quote(f"/{BUCKET}{name}")
            # 409: the bucket is there
            self._ask("PUT", path, body, {"Authorization": _SOMEBODY}, {200, 409})

    def reset(self) -> None:
        """Fail no more, let all that is late arrive, and forget the requests."""
        self.fault = None
        self.deliver(all_of_it=True)
        self.requests.clear()

    def deliver(self, *, all_of_it: bool = False) -> None:
        """Let requests arrive that are late enough; what is answered is told to nobody."""
        due = [each for each in self.late if all_of_it or each[0] <= len(self.requests)]
        for each in due:
            try:
                self.late.remove(each)
            except ValueError:
                continue  # another thread has it
            self.send(each[1], each[2])

    def send(self, request: Request, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request on to the server, and return its answer."""
        # moto looks whether a name is free and then writes: two threads of it may both find it so
        names = {name.lower() for name in request.headers}
        alone = self._kind == "moto" and "if-none-match" in names
        with self.creating if alone else nullcontext():
            server = http.client.HTTPConnection("127.0.0.1", self._server, timeout=60)
            with closing(server):
                server.request(request.method, request.path, body, headers=dict(request.headers))
                answer = server.getresponse()
                return answer, answer.read()

    def fetched(self, suffix: str = "") -> int:
        """Count the bytes that went out of objects whose names end so."""
        return sum(r.body_bytes for r in self.requests if r.name.endswith(suffix) and r.name)


def _signed_by_shared_key(method: str, path: str, parameters: str) -> dict[str, str]:
    """Return the headers of a request to Azure without a body."""
    own = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = [method, *[""] * 11, *(f"{name}:{value}" for name, value in sorted(own.items()))]
    text = "\n".join([*lines, f"/{AZURE_ACCOUNT}{path}", parameters])
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    return {**own, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}", "Content-Length": "0"}


@contextmanager
def object_store(kind: str = "moto", folder: Path | None = None) -> Iterator[ObjectStore]:
    """Start a server and the proxy, both on ports that are free.

    Args:
        kind: ``moto``, or one of :mod:`tests.support.object_servers`.
        folder: where such a one keeps its data.
    """
    with _moto() if folder is None else object_server(kind, folder) as port:
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
        proxy.daemon_threads = True
        store = ObjectStore(f"http://127.0.0.1:{proxy.server_port}", port, kind)
        proxy.store = store  # type: ignore[attr-defined]
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            proxy.shutdown()
            proxy.server_close()


@contextmanager
def _moto() -> Iterator[int]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        yield moto.get_host_and_port()[1]
    finally:
        moto.stop()


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second would wait 40 ms for the first's ACK
    disable_nagle_algorithm = True
    server: Any

    def handle_expect_100(self) -> bool:
        """Say at once that a body may come: Hadoop's client of S3 waits for it 3 s at most."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def do_PUT(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        store: ObjectStore = self.server.store
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else -1
        request = Request(self.command, self.path, start, 0, dict(self.headers.items()))
        fault = store.fault(request) if store.fault is not None else None
        if fault in {"lost", "late", "404", "409", "503", "500 before", "expired"}:
            store.requests.append(request)
            if fault == "late":
                store.late.append((len(store.requests) + _LATE_BY, request, sent))
            self._refuse_unread(fault)
            return
        answer, body = store.send(request, sent)
        store.requests.append(replace(request, body_bytes=len(body)))
        store.deliver()
        self._answer(answer, body, fault)

    def _refuse_unread(self, fault: str) -> None:
        self.close_connection = True
        if fault in {"lost", "late"}:
            self.connection.close()
            return
        body = b""
        if fault == "expired":
            fault, body = "400", b"<Error><Code>ExpiredToken</Code><Message>no</Message></Error>"
        if fault == "404":
            body = b"<Error><Code>NoSuchUpload</Code><Message>no</Message></Error>"
        self.send_response(int(fault.partition(" ")[0]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, answer: http.client.HTTPResponse, body: bytes, fault: str | None) -> None:
        if fault == "silence":
            threading.Event().wait(60)
        if fault in {"reset", "silence"}:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(int(fault) if fault in {"403", "500"} else answer.status)
        head = {
            k: v
            for k, v in answer.getheaders()
            if k.lower() not in {"connection", "server", "date", "transfer-encoding"}
        }
        if answer.getheader("Transfer-Encoding"):
            head["Content-Length"] = str(len(body))
        if fault in {"403", "500"}:
            code = {"403": "AccessDenied", "500": "InternalError"}[fault]
            body = (
                b""
                if self.command == "HEAD"
                else f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            )
            head = {"Content-Length": str(len(body)), "Content-Type": "application/xml"}
        for name, value in head.items():
            self.send_header(name, value)
        self.end_headers()
        if fault == "short":
            self.close_connection = True
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep the tests' output clean."""
