"""An S3 API server on this machine, and a way to it that counts requests and can fail."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Fault", "ObjectStore", "Request", "object_store"]

BUCKET: Final = "archive"
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
connection ends) or ``409``.
"""


@dataclass
class ObjectStore:
    """The server, as its users reach it: through a proxy that keeps a list of requests."""

    endpoint: str
    _moto: int
    requests: list[Request] = field(default_factory=list)
    fault: Fault | None = None
    creating: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, str]:
        """What a query needs to reach it."""
        return {
            "storage.endpoint": self.endpoint,
            "storage.region": "us-east-1",
            "storage.accessKey": "an-id",
            "storage.secretKey": "a-well-kept-secret",
        }

    def uri(self, prefix: str = "") -> str:
        """Return the URI of what :meth:`upload` has put under a prefix."""
        return f"s3://{BUCKET}/{prefix}".rstrip("/")

    def make_bucket(self) -> None:
        """Make the bucket, with nothing in it."""
        moto = http.client.HTTPConnection("127.0.0.1", self._moto, timeout=60)
        with closing(moto):
            moto.request("PUT", f"/{BUCKET}", b"", {"Authorization": _SOMEBODY})
            assert moto.getresponse().status == 200

    def upload(self, folder: Path, prefix: str) -> None:
        """Copy all files of a folder, past the proxy."""
        moto = http.client.HTTPConnection("127.0.0.1", self._moto, timeout=60)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = {f"/{prefix}/{path.relative_to(folder)}": path for path in files}
        with closing(moto):
            for name in ("", *names):
                body = names[name].read_bytes() if name else b""
                moto.request("PUT", quote(f"/{BUCKET}{name}"), body, {"Authorization": _SOMEBODY})
                answer = moto.getresponse()
                assert answer.status in {200, 409}, (
                    answer.status,
                    name,
                    answer.read(),
                )  # 409: the bucket is there
                answer.read()

    def reset(self) -> None:
        """Forget the requests, and fail no more."""
        self.requests.clear()
        self.fault = None

    def fetched(self, suffix: str = "") -> int:
        """Count the bytes that went out of objects whose names end so."""
        return sum(r.body_bytes for r in self.requests if r.name.endswith(suffix) and r.name)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start the server and the proxy, both on ports that are free."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    try:
        port = moto.get_host_and_port()[1]
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
        proxy.daemon_threads = True
        store = ObjectStore(f"http://127.0.0.1:{proxy.server_port}", port)
        proxy.store = store  # type: ignore[attr-defined]
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            proxy.shutdown()
            proxy.server_close()
    finally:
        moto.stop()


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second would wait 40 ms for the first's ACK
    disable_nagle_algorithm = True
    server: Any

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
        headers = dict(self.headers.items())
        request = Request(self.command, self.path, start, 0, headers)
        fault = store.fault(request) if store.fault is not None else None
        if fault in {"lost", "409"}:
            store.requests.append(request)
            self._refuse_unread(fault)
            return
        # moto looks whether a name is free and then writes: two threads of it may both find it so
        alone = store.creating if "if-none-match" in self.headers else nullcontext()
        with alone:
            upstream = http.client.HTTPConnection("127.0.0.1", store._moto, timeout=60)
            upstream.request(self.command, self.path, sent, headers=headers)
            answer = upstream.getresponse()
            body = answer.read()
            upstream.close()
        store.requests.append(replace(request, body_bytes=len(body)))
        self._answer(answer, body, fault)

    def _refuse_unread(self, fault: str) -> None:
        self.close_connection = True
        if fault == "lost":
            self.connection.close()
            return
        self.send_response(409)
        self.send_header("Content-Length", "0")
        self.end_headers()

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
            if k.lower() not in {"connection", "server", "date"}
        }
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
