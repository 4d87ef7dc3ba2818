"""The calls that a log in an object store is made of, on a folder and on an S3 server."""

from __future__ import annotations

import base64
import itertools
import pickle
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.object_store import ObjectStore, object_store

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files import objects as objects_module
from kafkalog.files import storage
from kafkalog.files.objects import (
    Creation,
    FolderObjects,
    ObjectEntry,
    Objects,
    check_create_is_exclusive,
    open_objects,
)
from kafkalog.files.remote_store import open_store
from kafkalog.files.storage import SECRET_OPTIONS, RemoteRoot, is_object_uri, with_secrets
from kafkalog.streaming.options.declaring import options_of
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.options.store_options import StoreOptions
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        store.make_bucket()
        yield store


def on_server(server: ObjectStore, prefix: str, **options: Any) -> Objects:
    given = {
        "endpoint": server.endpoint,
        "region": "us-east-1",
        "access_key": "an-id",
        "secret_key": "a-well-kept-secret",
        **options,
    }
    return open_objects(RemoteRoot.parse(server.uri(prefix)).with_options(given))


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return open_objects(tmp_path)
    server = request.getfixturevalue("server")
    server.reset()
    return on_server(server, tmp_path.name)


@pytest.fixture
def failing(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(objects_module, "rest_after", lambda _: None)
    server.reset()
    yield server
    server.reset()


def test_a_name_is_created_once(objects: Objects) -> None:
    assert objects.create("commits/1", b"first") is Creation.CREATED
    assert objects.create("commits/1", b"second") is Creation.TAKEN
    assert objects.get("commits/1") == b"first"


def test_what_is_not_there_is_none(objects: Objects) -> None:
    assert objects.get("commits/7") is None
    assert objects.get_range("commits/7", 0, 5) is None
    assert objects.list_after("commits") == []
    objects.delete(["commits/7"])


def test_a_range_is_all_there_or_an_error(objects: Objects) -> None:
    objects.put("data/a", b"0123456789")
    assert objects.get_range("data/a", 2, 3) == b"234"
    assert objects.get_range("data/a", 2, 0) == b""
    with pytest.raises(LogDirectoryError, match=r"data/a.* 8 .*12"):
        objects.get_range("data/a", 8, 4)


def test_a_listing_begins_after_a_name_and_ends_at_its_limit(objects: Objects) -> None:
    for number in range(5):
        objects.put(f"floors/{number:020}", b"x" * number)
    objects.put("floors-of-others/1", b"")
    listed = objects.list_after("floors", f"{2:020}")
    assert [(entry.name, entry.size) for entry in listed] == [(f"{n:020}", n) for n in (3, 4)]
    assert [entry.name for entry in objects.list_after("floors", limit=1)] == [f"{0:020}"]
    objects.delete([f"floors/{n:020}" for n in range(4)])
    assert [entry.name for entry in objects.list_after("floors")] == [f"{4:020}"]


def test_one_of_many_writers_creates_a_name(objects: Objects) -> None:
    check_create_is_exclusive(objects, "_kafkalog/race", writers=8, rounds=2)
    assert objects.list_after("_kafkalog/race") == []


def test_what_is_pickled_asks_the_same_store(objects: Objects) -> None:
    objects.put("a", b"content")
    assert pickle.loads(pickle.dumps(objects)).get("a") == b"content"


class Careless(FolderObjects):
    """A store that looks first and then writes, as some do."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._all_have_looked = threading.Barrier(16)

    def create(self, name: str, data: bytes) -> Creation:
        taken = self.get(name) is not None
        self._all_have_looked.wait(60)
        if taken:
            return Creation.TAKEN
        super().create(name, data)
        return Creation.CREATED


class Unable(FolderObjects):
    """A store that answers 501 to a condition."""

    def create(self, name: str, data: bytes) -> Creation:
        return Creation.UNKNOWN


class Forgetful(FolderObjects):
    """A store that says that it has created an object, and keeps another one."""

    def create(self, name: str, data: bytes) -> Creation:
        answer = super().create(name, b"another")
        return answer if data == b"0" else Creation.TAKEN


class Stale(FolderObjects):
    """A store behind something that answers a listing as it was when it was first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._listed: dict[object, list[ObjectEntry]] = {}

    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        asked = folder, after, limit
        return self._listed.setdefault(asked, super().list_after(folder, after, limit))


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        (Stale, "a listing after that does not show it"),
        (Careless, "let 16 of them create it"),
        (Unable, "it created none"),
        (Forgetful, "holds b'another'"),
    ],
)
def test_a_store_that_does_not_keep_the_condition_is_refused(
    tmp_path: Path, store: type[FolderObjects], fault: str
) -> None:
    with pytest.raises(LogDirectoryError, match=fault) as caught:
        check_create_is_exclusive(store(tmp_path), "race", rounds=1)
    assert str(caught.value).startswith(str(tmp_path))
    assert not list(FolderObjects(tmp_path).list_after("race"))


# What goes wrong on the way


@pytest.mark.parametrize(
    ("fault", "is_there"), [("500", True), ("reset", True), ("lost", False), ("409", False)]
)
def test_a_creation_is_asked_once_and_left_open(
    failing: ObjectStore, fault: str, is_there: bool
) -> None:
    objects = on_server(failing, f"open-{fault}")
    failing.fault = lambda request: fault if request.method == "PUT" else None
    answer = objects.create("commits/1", b"first")
    assert answer is (Creation.TAKEN if fault == "409" else Creation.UNKNOWN)
    assert len(failing.requests) == 1
    assert (objects.get("commits/1") == b"first") is is_there


@pytest.mark.parametrize("fault", ["500", "reset", "lost", "short"])
def test_a_call_that_may_be_repeated_is_repeated(failing: ObjectStore, fault: str) -> None:
    objects = on_server(failing, f"again-{fault}", tries=3)
    count = itertools.count(1)
    failing.fault = lambda request: fault if next(count) % 3 else None
    objects.put("data/a", b"0123456789")
    assert objects.get("data/a") == b"0123456789"
    assert objects.get_range("data/a", 3, 4) == b"3456"
    assert [entry.name for entry in objects.list_after("data")] == ["a"]


def test_a_store_that_fails_at_every_try_is_named(failing: ObjectStore) -> None:
    objects = on_server(failing, "down", tries=2)
    failing.fault = lambda request: "500"
    with pytest.raises(LogDirectoryError, match=r"down/commits/1 cannot be read \(tries: 2\)"):
        objects.get("commits/1")
    assert len(failing.requests) == 2


def test_a_refusal_is_final_and_says_what_a_role_needs(failing: ObjectStore) -> None:
    objects = on_server(failing, "refused")
    failing.fault = lambda request: "403"
    for ask in (
        lambda: objects.get("a"),
        lambda: objects.get_range("a", 0, 1),
        lambda: objects.create("a", b""),
        lambda: objects.put("a", b""),
        lambda: objects.list_after("commits"),
        lambda: objects.delete(["a"]),
    ):
        failing.requests.clear()
        with pytest.raises(LogDirectoryError, match="a role that may not list") as caught:
            ask()
        assert len(failing.requests) == 1
        assert "a-well-kept-secret" not in str(caught.value)


def test_a_key_without_its_secret_is_no_store_that_is_down(failing: ObjectStore) -> None:
    objects = on_server(failing, "half", secret_key=None)
    with pytest.raises(LogDirectoryError, match=r"\(tries: 1\).* check the credentials"):
        objects.get("a")


@pytest.mark.parametrize(
    "text",
    [
        *("s3:///logs", "s3://buck et/logs", "s3://bucket:80/logs", "az:///logs"),
        *("s3://bucket/a//b", "s3://bucket/a/../b", "s3://bucket/./b"),
    ],
)
def test_a_uri_that_names_no_place_in_a_bucket_is_refused(server: ObjectStore, text: str) -> None:
    given = {"endpoint": server.endpoint, "region": "us-east-1", "anonymous": True}
    with pytest.raises(OptionError, match="names no place in a bucket") as caught:
        open_objects(RemoteRoot.parse(text).with_options(given)).get("a")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("::::", "http://", "ftp://host", "http://ho st:9000", "http://[::1", "http://host:x"),
        *("http://host:99999", "http://host?x=1", "http://hö.com"),
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str, scheme: str) -> None:
    root = RemoteRoot.parse(f"{scheme}://bucket/logs").with_options({"endpoint": endpoint})
    with pytest.raises(OptionError, match=r"storage.endpoint' is .*accepts a URL such as"):
        open_objects(root).get("a")


def test_keys_that_have_expired_are_looked_for_again_at_the_next_call(
    failing: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = on_server(failing, "expired")
    assert objects.create("a", b"1") is Creation.CREATED
    connected = []
    connect = objects_module._connect
    monkeypatch.setattr(
        objects_module, "_connect", lambda place: connected.append(place) or connect(place)
    )
    for ask in (lambda: objects.get("a"), lambda: objects.create("b", b"")):
        failing.requests.clear()
        failing.fault = lambda request: "expired"
        with pytest.raises(LogDirectoryError, match="they may have expired"):
            ask()
        assert len(failing.requests) == 1
        failing.fault = None
        assert objects.get("a") == b"1"
    assert len(connected) == 2
    assert objects.get("b") is None


def test_a_write_or_listing_that_is_answered_404_is_not_done(failing: ObjectStore) -> None:
    """As where a rule of the bucket gave up a multipart upload while its writer slept."""
    objects = on_server(failing, "given-up")
    pieces = [bytes([number]) * (6 << 20) for number in range(3)]
    answers = iter(["404"])
    failing.fault = lambda request: next(answers, None) if "partNumber=2" in request.path else None
    objects.put_pieces("a", lambda: pieces)
    assert objects.get_range("a", 6 << 20, 1) == bytes([1])
    answers = iter(["404"])
    failing.fault = lambda request: next(answers, None)
    objects.put("b", b"there")
    assert objects.get("b") == b"there"
    answers = iter(["404"])
    assert [entry.name for entry in objects.list_after("", "")] == ["a", "b"]
    failing.fault = lambda request: "404"
    for ask in (
        lambda: objects.put("c", b""),
        lambda: objects.put_pieces("c", lambda: pieces),
        lambda: objects.list_after("", ""),
    ):
        with pytest.raises(LogDirectoryError, match=r"cannot be (written|listed)"):
            ask()
    assert objects.get("c") is None


def test_what_is_gone_already_keeps_no_other_object_from_being_deleted(
    failing: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Azure and Google have it, which answer 404 for what is not there."""
    import obstore

    objects = on_server(failing, "some-gone")
    names = [f"a/{number}" for number in range(5)]
    for name in names[1:]:
        objects.put(name, b"")
    delete = obstore.delete

    def delete_or_tell(client: Any, paths: str | list[str]) -> None:
        for path in [paths] if isinstance(paths, str) else paths:
            if objects.get(path) is None:
                raise FileNotFoundError(path)
            delete(client, path)

    monkeypatch.setattr(obstore, "delete", delete_or_tell)
    objects.delete(names)
    assert objects.list_after("a") == []


def test_a_bucket_that_is_not_there_is_an_error(server: ObjectStore) -> None:
    server.reset()
    root = RemoteRoot.parse("s3://nowhere/logs").with_options(
        {"endpoint": server.endpoint, "region": "us-east-1", "anonymous": True}
    )
    objects = open_objects(root)
    for ask in (lambda: objects.get("a"), lambda: objects.put("a", b"")):
        with pytest.raises(LogDirectoryError, match="make the bucket first"):
            ask()


def test_each_request_says_that_no_cache_may_answer(server: ObjectStore) -> None:
    server.reset()
    on_server(server, "fresh").get("a")
    assert [request.headers["cache-control"] for request in server.requests] == ["no-cache"]


FORKED = """
import base64, os, pickle, sys
from kafkalog.errors import LogDirectoryError
from kafkalog.files.forked_objects import _Helper
from kafkalog.files.objects import Creation, open_objects
from kafkalog.files.system import remembered

objects = open_objects(pickle.loads(base64.b64decode(sys.argv[1])))
assert objects.get("d/a") is None
child = os.fork()
if not child:
    assert objects.create("d/a", b"0123456789") is Creation.CREATED
    assert objects.create("d/a", b"x") is Creation.TAKEN
    objects.put("d/b", b"b" * 100)
    objects.put_pieces("d/c", lambda: iter([b"c" * 6_000_000] * 3))
    assert objects.get("d/a") == b"0123456789"
    assert objects.get_range("d/a", 2, 3) == b"234"
    assert objects.get_range("nope", 2, 3) is None
    assert len(objects.get("d/c")) == 18_000_000
    assert [entry.name for entry in objects.list_after("d", "a")] == ["b", "c"]
    try:
        objects.get_range("d/a", 8, 4)
    except LogDirectoryError as error:
        assert "bytes 8 to 12 cannot be read" in str(error), error
    remembered(_Helper)._process.kill()
    try:
        objects.get("d/a")
    except LogDirectoryError as error:
        assert "has ended: try again" in str(error), error
    assert objects.get("d/a") == b"0123456789"
    remembered(_Helper)._process.kill()
    assert objects.create("d/e", b"e") is Creation.UNKNOWN
    grandchild = os.fork()
    if not grandchild:
        assert objects.get("d/b") == b"b" * 100
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
    objects.delete(["d/b"])
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert objects.get("d/b") is None and len(objects.get("d/c")) == 18_000_000
"""


def test_a_process_that_was_forked_after_the_store_was_used_asks_by_another_one(
    server: ObjectStore,
) -> None:
    server.reset()
    place = base64.b64encode(pickle.dumps(server.place("forked"))).decode()
    command = [sys.executable, "-W", "ignore", "-c", FORKED, place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("s3://bucket/logs", True),
        ("s3a://bucket/logs", True),
        ("az://container/logs", True),
        ("abfss://container@account.dfs.core.windows.net/logs", True),
        ("gs://bucket/logs", True),
        ("hdfs://host/logs", False),
        ("/logs", False),
    ],
)
def test_some_uris_name_a_store_that_a_log_can_be_written_in(text: str, is_one: bool) -> None:
    assert is_object_uri(text) is is_one


@pytest.mark.parametrize(
    "text",
    [
        "az://container/logs",
        "abfss://container@account.dfs.core.windows.net/logs",
        "gs://bucket/logs",
    ],
)
def test_clients_of_other_clouds_are_made(text: str) -> None:
    place = RemoteRoot.parse(text).with_options(
        {"anonymous": True, "account_name": "account" if text.startswith("az:") else None}
    )
    client = objects_module._connect(place)
    assert str(client.prefix) == "logs"


# Options of a store


def test_options_of_a_store_go_with_its_requests(server: ObjectStore, tmp_path: Path) -> None:
    server.reset()
    objects = on_server(
        server,
        tmp_path.name,
        kms_key_id="a-key-of-kms",
        requester_pays=True,
        path_style=True,
    )
    objects.create("a", b"content")
    (request,) = server.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert request.path == f"/archive/{tmp_path.name}/a"
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "a-key-of-kms"
    assert headers["x-amz-request-payer"] == "requester"


def test_a_store_is_asked_through_a_proxy(server: ObjectStore, tmp_path: Path) -> None:
    server.reset()
    given = {"endpoint": "http://no-such-host.invalid:1", "proxy": server.endpoint}
    with pytest.raises(LogDirectoryError):  # the server takes the host's name for a bucket
        on_server(server, tmp_path.name, **given).get("a")
    (request,) = server.requests
    assert request.path.startswith("http://no-such-host.invalid:1/archive/")


def test_a_file_of_certificates_that_is_not_there_is_named(
    server: ObjectStore, tmp_path: Path
) -> None:
    objects = on_server(server, tmp_path.name, ca_file=f"{tmp_path}/none.pem")
    with pytest.raises(OptionError, match=r"storage\.caFile.*none\.pem"):
        objects.get("a")


def test_a_role_is_assumed_by_boto3_or_refused(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)  # moto is all services at once
    role = "arn:aws:iam::123456789012:role/reader"
    on_server(server, tmp_path.name, role_arn=role).get("a")
    assert [request.method for request in server.requests] == ["POST", "GET"]
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(OptionError, match=r"pip install 'kafkalog\[aws\]'"):
        on_server(server, f"{tmp_path.name}-2", role_arn=role).get("a")


@contextmanager
def nobodys_tls(folder: Path) -> Iterator[tuple[str, Path]]:
    """Serve 404s by TLS on this machine; yield the URL, and the file of the certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    no_password = serialization.NoEncryption()
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(*kinds, no_password))
    (folder / "certificate.pem").write_bytes(signed.public_bytes(kinds[0]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}", folder / "certificate.pem"
        server.shutdown()


def test_a_store_whose_certificate_is_not_trusted_names_the_option(
    server: ObjectStore, tmp_path: Path
) -> None:
    with nobodys_tls(tmp_path) as (url, certificate):
        given = {"endpoint": url, "tries": 1, "access_key": "id", "secret_key": "s"}
        place = RemoteRoot.parse(server.uri("x")).with_options({**given, "region": "us-east-1"})
        for asked in (open_objects(place).get, open_store(place).entries):
            with pytest.raises(LogDirectoryError, match=r"certificate .* storage\.caFile"):
                asked("a")
        trusted = place.with_options({"ca_file": str(certificate)})
        assert open_objects(trusted).get("a") is None


def test_no_secret_is_shown(tmp_path: Path) -> None:
    secrets = {
        "secret_key": "Secret-1",
        "session_token": "Secret-2",
        "account_key": "Secret-3",
        "proxy": "http://user:Secret-4@127.0.0.1:1",
    }
    for uri in ("s3://bucket/logs", "az://bucket/logs"):
        place = RemoteRoot.parse(uri).with_options(
            {**secrets, "tries": 1, "account_name": "name", "access_key": "id"}
        )
        objects = open_objects(place)
        with pytest.raises(Exception) as error:  # noqa: PT011 - whichever it is
            objects.get("a")
        shown = [f"{error.value}", f"{place}", f"{place!r}", f"{place.options}", f"{objects!r}"]
        shown.append(f"{objects.root} {vars(objects)!r}")
        assert "Secret" not in " ".join(shown)


# Secrets, and where they come from


def test_no_pickle_has_a_secret(server: ObjectStore, tmp_path: Path) -> None:
    given = {
        "storage.endpoint": server.endpoint,
        "storage.accessKey": "Secret-0",
        "storage.secretKey": "Secret-1",
        "storage.sessionToken": "Secret-2",
        "storage.accountKey": "Secret-3",
        "storage.proxy": "http://user:Secret-4@127.0.0.1:1",
        "path": server.uri(tmp_path.name),
    }
    read = ReadOptions.parse({**given, "subscribe": "t"})
    write = WriteOptions.parse({**given, "topic": "t"})
    for each in (read, write, read.paths, with_secrets(given)):
        pickled = pickle.dumps(each)
        assert b"Secret" not in pickled
        assert "Secret" not in repr(each)
        again = pickle.loads(pickled)
        assert again == each
    for uri in ("s3://id:Secret@b/logs", "az://b/logs?key=Secret", "hdfs://id:Secret@b/logs"):
        place = RemoteRoot.parse(uri)
        assert b"Secret" not in pickle.dumps(place)
        again = pickle.loads(pickle.dumps(place))
        assert (again, again.options, again.full_uri) == (place, place.options, place.full_uri)


def test_options_that_are_secrets_are_known_by_their_names() -> None:
    declared = {each.name.lower() for each in options_of(StoreOptions) if each.secret}
    assert declared == SECRET_OPTIONS


def test_on_another_machine_each_process_finds_its_own_keys(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    with monkeypatch.context() as there:
        there.setattr(storage.os, "getuid", lambda: 4_000_000_000)  # nothing of it is here
        with pytest.raises(OptionError, match="AWS_ACCESS_KEY_ID"):
            pickle.dumps(server.place(tmp_path.name))
    pickled = pickle.dumps(open_objects(server.place(tmp_path.name, **{"storage.tries": "1"})))
    with monkeypatch.context() as here:
        here.setattr(storage.Path, "read_text", _not_here)
        elsewhere = pickle.loads(pickled)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    elsewhere.get("a")
    (request,) = server.requests
    assert "Credential=another-id/" in request.headers["authorization"]
    server.fault = lambda _: "403"
    with pytest.raises(LogDirectoryError, match=r"spark\.executorEnv"):
        elsewhere.get("a")
    server.reset()


def _not_here(path: Path) -> str:
    raise FileNotFoundError(path)


def test_a_proxy_that_only_another_machine_knows_is_refused(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = {"storage.proxy": "http://user:Secret@127.0.0.1:1"}
    pickled = pickle.dumps(open_objects(server.place(tmp_path.name, **proxy)))
    monkeypatch.setattr(storage.Path, "read_text", _not_here)
    with pytest.raises(OptionError, match=r"storage\.proxy.*HTTPS_PROXY"):
        pickle.loads(pickled).get("a")


def test_secrets_are_kept_where_nobody_else_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = storage._folder_for_secrets(str(tmp_path))
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "old").write_text("x")
    names = {storage._key_of(folder), storage._key_of(folder)}
    assert len(names) == 1
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="of this user alone"):
        storage._folder_for_secrets(str(tmp_path))
    folder.chmod(0o700)
    monkeypatch.setattr(storage, "_KEPT_S", -1000)
    storage._remove_unused(folder)
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_a_profile_gives_the_keys(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.reset()
    profiles = tmp_path / "credentials"
    profiles.write_text("[loader]\naws_access_key_id = of-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    monkeypatch.setenv("AWS_PROFILE", "loader")
    on_server(server, tmp_path.name, access_key=None, secret_key=None).get("a")
    on_server(server, f"{tmp_path.name}-2").get("a")  # keys that are given count more
    used = [request.headers["authorization"] for request in server.requests]
    assert ["Credential=of-profile/" in each for each in used] == [True, False]
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OptionError, match=r"AWS_PROFILE=nobody.*nobody"):
        on_server(server, f"{tmp_path.name}-3", access_key=None, secret_key=None).get("a")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(OptionError, match=r"pip install 'kafkalog\[aws\]'"):
        on_server(server, f"{tmp_path.name}-4", access_key=None, secret_key=None).get("a")
