"""The few calls that a log in an object store is made of, each one request.

A commit is an object whose name was free. So one call must be atomic in the store:
:meth:`Objects.create`. Its answer may be lost, and the request may arrive after its time-out, so
``create`` never fails for that reason: it says :attr:`Creation.UNKNOWN`, and the caller reads what
lies under the name. The client's own retries are off: with them a lost answer comes back as "the
name is taken", by our own object.

All other calls can be repeated, and are, as often as ``storage.tries`` says.
"""

from __future__ import annotations

import enum
import os
import re
from concurrent.futures import wait
from contextlib import suppress
from datetime import UTC, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.forked_objects import forward_after_fork
from kafkalog.files.regular import fsync_directory
from kafkalog.files.storage import CA_FILE_ADVICE, UNTRUSTED, RemoteRoot
from kafkalog.files.system import remembered, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kafkalog.files.storage import StorageOptions

__all__ = [
    "Creation",
    "FolderObjects",
    "ObjectEntry",
    "Objects",
    "StoreObjects",
    "check_create_is_exclusive",
    "open_objects",
    "rest_after",
]

_T = TypeVar("_T")

_FIRST_REST_S: Final = 0.1
_LONGEST_REST_S: Final = 5.0
_ONE_REQUEST_BYTES: Final = 16 << 20
"""Up to here an object is put in one request; what is larger goes up in parts."""

_REFUSED: Final = ("PermissionDeniedError", "UnauthenticatedError", "InvalidPathError")
_REFUSED_BY: Final = re.compile(
    r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired|RequestTimeTooSkewed"
    r"|AuthorizationHeaderMalformed)</Code>|status code: 40[13] |incorrectly configured region"
    r"|Missing (AccessKeyId|SecretAccessKey)|Account must be specified"
)
"""What an answer that refuses may say, without an error of that kind: S3's 400 to keys that have
expired or are of another region, 403 to a listing; and what the client lacks."""
_NO_BUCKET: Final = re.compile(
    r"<Code>NoSuchBucket</Code>|<Code>ContainerNotFound</Code>|The specified bucket does not exist"
)


_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._$-]*", re.ASCII)
_URL: Final = re.compile(
    r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?", re.ASCII
)
"""An endpoint of which a request can be made: the client panics at others."""


class Creation(enum.Enum):
    """The answer to the wish to create an object."""

    CREATED = "created"
    TAKEN = "taken"
    """The store says that the name is taken. It may be our own object, of an earlier request."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves it open: the object may be there, or may still appear."""


class ObjectEntry(NamedTuple):
    """What a listing says of an object."""

    name: str
    size: int
    modified_ns: int
    """When it was written, by the store's clock."""


class Objects(Protocol):
    """The objects below a root. Names are relative to it, with ``/`` between their parts."""

    root: str
    """How a person knows it; holds no secret."""
    tries: int

    def create(self, name: str, data: bytes) -> Creation:
        """Create an object if its name is free; one request, never repeated.

        Raises:
            LogDirectoryError: the store refuses for good, and has written nothing.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Put an object whose name nobody else uses, in the place of an earlier one."""
        ...

    def put_pieces(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Put an object whose name nobody else uses, of any size, holding some pieces at a time.

        ``pieces`` is called again for each try; what it raises ends the call, and nothing is there.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """Return an object, past all caches; None if there is none now."""
        ...

    def get_range(self, name: str, position: int, size: int) -> bytes | memoryview | None:
        """Return all bytes of a range; None if there is no such object.

        Raises:
            LogDirectoryError: the object ends before the range does, or the store fails.
        """
        ...

    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        """List the names in a folder that are greater than ``folder/after``, in their order."""
        ...

    def delete(self, names: list[str]) -> None:
        """Delete objects; those that are gone already are no fault."""
        ...


def open_objects(place: RemoteRoot | Path) -> Objects:
    """Return the objects below a URI, or below a local folder; a process opens a store once."""
    if not isinstance(place, RemoteRoot):
        return FolderObjects(place)
    opened = remembered(_OpenObjects).by_root
    key = (str(place), place.options, place.full_uri)
    found = opened.get(key)
    return found if found is not None else opened.setdefault(key, StoreObjects(place))


class _OpenObjects:
    """The stores that this process has opened."""

    def __init__(self) -> None:
        self.by_root: dict[object, StoreObjects] = {}


def rest_after(tries: int) -> None:
    """Rest after so many tries, for a time that grows, with full jitter.

    Raises:
        Interrupted: the caller was interrupted, and wants no further try.
    """
    check_interrupt()
    longest: float = min(_FIRST_REST_S * 2 ** min(tries - 1, 10), _LONGEST_REST_S)
    system.sleep(longest * (system.random_id().int >> 96) / (1 << 32))


# ----------------------------------------------------------------------------------------------
# A store in the cloud.


class StoreObjects:
    """The objects below a URI, by obstore (the crate ``object_store``).

    Opened at the first request. A process that was forked after that has another one ask.
    """

    def __init__(self, place: RemoteRoot) -> None:
        self.root = str(place)
        self.tries = place.options.tries
        self.place = place
        """The URI, with the options of its store."""
        self._store: Any = None

    def __reduce__(self) -> tuple[Callable[[RemoteRoot], Objects], tuple[RemoteRoot]]:
        return open_objects, (self.place,)

    @forward_after_fork(if_lost=Creation.UNKNOWN)
    def create(self, name: str, data: bytes) -> Creation:
        """See :meth:`Objects.create`."""
        import obstore  # noqa: PLC0415 - who reads local logs needs none

        try:
            obstore.put(self._client, name, data, mode="create", use_multipart=False)
        except _store_errors() as error:
            kind = type(error).__name__
            # S3 says 412 or 409, Azure 409 or 412: the same to us. 409 may be said of a free name.
            if kind in {"AlreadyExistsError", "PreconditionError"}:
                return Creation.TAKEN
            if _is_refusal(error):
                raise self._failed(f"{self.root}/{name} cannot be created", 1, error) from error
            return Creation.UNKNOWN
        return Creation.CREATED

    @forward_after_fork()
    def put(self, name: str, data: bytes) -> None:
        """See :meth:`Objects.put`."""
        import obstore  # noqa: PLC0415

        in_parts = len(data) > _ONE_REQUEST_BYTES
        self._trying(
            f"{self.root}/{name} cannot be written",
            lambda: obstore.put(
                self._client,
                name,
                data,
                use_multipart=in_parts,
                chunk_size=_ONE_REQUEST_BYTES,
                max_concurrency=4,
            ),
        )

    @forward_after_fork()
    def put_pieces(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """See :meth:`Objects.put_pieces`."""
        import obstore  # noqa: PLC0415

        self._trying(
            f"{self.root}/{name} cannot be written",
            lambda: obstore.put(
                self._client,
                name,
                iter(pieces()),
                use_multipart=True,
                chunk_size=_ONE_REQUEST_BYTES,
                max_concurrency=2,
            ),
        )

    @forward_after_fork()
    def get(self, name: str) -> bytes | None:
        """See :meth:`Objects.get`."""
        import obstore  # noqa: PLC0415

        return self._trying_to_find(
            f"{self.root}/{name} cannot be read",
            lambda: obstore.get(self._client, name).bytes().to_bytes(),
        )

    @forward_after_fork()
    def get_range(self, name: str, position: int, size: int) -> bytes | memoryview | None:
        """See :meth:`Objects.get_range`."""
        import obstore  # noqa: PLC0415

        if size == 0:
            return b""

        def fetch() -> memoryview:
            data = memoryview(obstore.get_range(self._client, name, start=position, length=size))
            if len(data) != size:
                raise OSError(f"{len(data)} bytes came")
            return data

        what = f"{self.root}/{name}: bytes {position} to {position + size} cannot be read"
        return self._trying_to_find(what, fetch)

    @forward_after_fork()
    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        """See :meth:`Objects.list_after`."""
        import obstore  # noqa: PLC0415

        def ask() -> list[ObjectEntry]:
            offset = f"{folder}/{after}" if after else None
            found: list[ObjectEntry] = []
            for chunk in obstore.list(
                self._client, folder, offset=offset, chunk_size=min(limit, 1000)
            ):
                for entry in chunk:
                    name = entry["path"].removeprefix(f"{folder}/")
                    modified_ns = int(entry["last_modified"].timestamp() * 1000) * 1_000_000
                    found.append(ObjectEntry(name, entry["size"], modified_ns))
                if len(found) >= limit:
                    break
            if any(a.name >= b.name for a, b in pairwise(found)):
                raise LogDirectoryError(
                    f"{self.root} is not listed in the order of names, which a log needs: keep it "
                    "in a store that does (S3 Express and Azure with hierarchical names do not)"
                )
            return found[:limit]

        return self._trying(f"{self.root}/{folder} cannot be listed", ask)

    @forward_after_fork()
    def delete(self, names: list[str]) -> None:
        """See :meth:`Objects.delete`."""
        import obstore  # noqa: PLC0415

        def remove(some: list[str]) -> bool:
            obstore.delete(self._client, some)
            return True

        what = f"objects in {self.root} cannot be deleted"
        if not names or self._trying_to_find(what, partial(remove, names)):
            return
        # Azure and Google answer 404 for one that is gone already; those after it were not asked.
        for name in names:
            self._trying_to_find(what, partial(remove, [name]))

    # How it is asked

    @property
    def _client(self) -> Any:  # noqa: ANN401 - one of three stores
        if self._store is None:
            self._store = _connect(self.place)
        return self._store

    def _trying_to_find(self, what: str, action: Callable[[], _T]) -> _T | None:
        """Ask as :meth:`_trying` does; None if the store says that there is no such object."""

        def ask() -> _T | None:
            try:
                return action()
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return None

        return self._trying(what, ask)

    def _trying(self, what: str, action: Callable[[], _T]) -> _T:
        """Ask, and again after rests that grow.

        A write and a listing need no object: a 404 to them says that a multipart upload was aborted
        meanwhile, or comes from a proxy. What was asked for is not done.

        Raises:
            LogDirectoryError: the store refuses, or failed at every try.
        """
        tries = 0
        while True:
            tries += 1
            try:
                return action()
            except FileNotFoundError as error:
                if tries >= self.tries or _NO_BUCKET.search(str(error)):
                    raise self._failed(what, tries, error) from error
            except _store_errors() as error:
                if tries >= self.tries or _is_refusal(error):
                    raise self._failed(what, tries, error) from error
            rest_after(tries)

    def _failed(self, what: str, tries: int, error: BaseException) -> LogDirectoryError:
        said = str(error).partition("\nDebug source:")[0].strip()
        said = self.place.options.without_secrets(said)
        if isinstance(error, FileNotFoundError):
            advice = "make the bucket first, or correct its name"
        elif _is_refusal(error):
            self._store = None  # keys that were renewed since are found by the next request
            advice = (
                "check the credentials (they may have expired), the region, the endpoint (options "
                "storage.*) and this machine's clock, and whether they may list, read and write "
                "there: a role that may not list the prefix is answered 403 for what does not "
                "exist" + self.place.options.advice_elsewhere
            )
        elif UNTRUSTED.search(str(error)):
            advice = CA_FILE_ADVICE
        else:
            advice = (
                "the store may be down or slow: try again later, or raise storage.tries or "
                "storage.timeout" + self.place.options.advice_elsewhere
            )
        return LogDirectoryError(f"{what} (tries: {tries}): {said:.600}; {advice}")


def _store_errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError  # noqa: PLC0415

    # FileNotFoundError, PermissionError and others are the built-in ones
    return (BaseError, OSError)


def _is_refusal(error: BaseException) -> bool:
    """Whether the store would say the same however often it is asked."""
    if type(error).__name__ in _REFUSED or isinstance(error, PermissionError):
        return True
    if _REFUSED_BY.search(str(error)):
        return True
    return isinstance(error, FileNotFoundError)  # to a request that writes: there is no bucket


def _connect(place: RemoteRoot) -> Any:  # noqa: ANN401
    """Make the client of a store; nothing is asked yet."""
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    options = place.options.found_here()
    uri = urlsplit(place.uri_here())
    if uri.scheme in {"s3", "s3a"}:
        options = options.with_endpoint_of_environment()
    bucket, prefix = uri.netloc.rpartition("@")[2], uri.path.strip("/")
    endpoint = _endpoint_of(options)
    _check_place(place, bucket, prefix)
    shared: dict[str, Any] = {
        "client_options": _client_config(options),
        # tries are counted, and rests taken, by whoever knows what a lost answer means
        "retry_config": {
            "max_retries": 0,
            "retry_timeout": timedelta(milliseconds=options.timeout_ms),
        },
    }
    if prefix:
        shared["prefix"] = prefix
    if uri.scheme in {"s3", "s3a"}:
        provider = _aws_credentials(place)
        if provider is not None:
            shared["credential_provider"] = provider
        return S3Store(bucket, config=_s3_config(options, endpoint), **shared)
    if uri.scheme == "gs":
        return GCSStore(
            bucket, config={"skip_signature": True} if options.anonymous else {}, **shared
        )
    container, _, account = uri.netloc.partition("@")
    given = {
        "account_name": options.account_name or account.partition(".")[0] or None,
        "account_key": options.account_key,
        "endpoint": endpoint,
        "skip_signature": options.anonymous or None,
    }
    config: Any = {key: value for key, value in given.items() if value is not None}
    return AzureStore(container, config=config, **shared)


def _client_config(options: StorageOptions) -> dict[str, Any]:
    """Return how the client speaks HTTP."""
    limit = timedelta(milliseconds=options.timeout_ms)
    client: dict[str, Any] = {
        "timeout": limit,
        "connect_timeout": limit,
        # no proxy may answer what was true a moment ago
        "default_headers": {"Cache-Control": "no-cache"},
    }
    if (options.endpoint or "").startswith("http://") or options.protocol == "http":
        client["allow_http"] = True
    if options.proxy:
        client["proxy_url"] = options.proxy
    if options.ca_file:
        try:
            client["root_certificate"] = Path(options.ca_file).read_bytes()
        except OSError as error:
            raise OptionError(f"option 'storage.caFile': it cannot be read: {error}") from error
    return client


def _check_place(place: RemoteRoot, bucket: str, prefix: str) -> None:
    """Refuse a URI whose objects would have no name, or another one than it says."""
    parts = set(prefix.split("/")) if prefix else set()
    if _BUCKET.fullmatch(bucket) is None or not parts.isdisjoint({"", ".", ".."}):
        raise OptionError(
            f"{place} names no place in a bucket: write it as s3://bucket/logs, with no part of "
            "the path empty, . or .."
        )


def _endpoint_of(options: StorageOptions) -> str | None:
    """Return the URL of a store, if one is given."""
    endpoint = options.endpoint
    if endpoint is None:
        return None
    if "://" not in endpoint:
        endpoint = f"{options.protocol or 'https'}://{endpoint}"
    found = _URL.fullmatch(endpoint)
    if found is None or int(found["port"] or 0) > 0xFFFF:
        raise OptionError(
            f"option 'storage.endpoint' is {options.endpoint!r}, but accepts a URL such as "
            "https://host:9000"
        )
    return endpoint


def _s3_config(options: StorageOptions, endpoint: str | None) -> Any:  # noqa: ANN401 - the client has a type of its own
    encryption = options.server_side_encryption or ("aws:kms" if options.kms_key_id else None)
    config = {
        "endpoint": endpoint,
        "region": options.region,
        "access_key_id": options.access_key,
        "secret_access_key": options.secret_key,
        "session_token": options.session_token,
        "skip_signature": options.anonymous or None,
        "conditional_put": "etag",
        "disable_bulk_delete": True,  # which not all stores know
        "server_side_encryption": encryption,
        "sse_kms_key_id": options.kms_key_id,
        "request_payer": options.requester_pays or None,
        "virtual_hosted_style_request": None
        if options.path_style is None
        else not options.path_style,
    }
    return {key: value for key, value in config.items() if value is not None}


def _aws_credentials(place: RemoteRoot) -> Any:  # noqa: ANN401 - one of two providers, or None
    """Return what finds credentials where the client itself does not: profiles, roles."""
    options = place.options.found_here()
    profile = os.environ.get("AWS_PROFILE")
    if options.role_arn is None and (options.access_key or options.anonymous or not profile):
        return None
    what = f"the role {options.role_arn}" if options.role_arn else f"AWS_PROFILE={profile}"
    try:
        import boto3  # type: ignore[import-untyped] # noqa: PLC0415
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(
            f"{place}: {what} needs boto3, which is not there: pip install 'kafkalog[aws]'"
        ) from error
    try:
        session = boto3.Session(
            options.access_key,
            options.secret_key,
            options.session_token,
            region_name=options.region,
        )
        if options.role_arn is None:
            return Boto3CredentialProvider(session)
    except Exception as error:  # botocore's own, and ValueError
        raise OptionError(f"{place}: {what} gives no credentials: {error}") from error

    return _assuming(session, options.role_arn)


def _assuming(session: Any, role_arn: str) -> Callable[[], dict[str, Any]]:  # noqa: ANN401
    """Return what takes on a role, and gives the keys that it gets for that."""

    def assume_role() -> dict[str, Any]:
        # obstore's own provider gives the time in a zone that obstore refuses
        answer = session.client("sts").assume_role(RoleArn=role_arn, RoleSessionName="kafkalog")
        found = answer["Credentials"]
        return {
            "access_key_id": found["AccessKeyId"],
            "secret_access_key": found["SecretAccessKey"],
            "token": found["SessionToken"],
            "expires_at": found["Expiration"].astimezone(UTC),
        }

    return assume_role


# ----------------------------------------------------------------------------------------------
# A local folder.


class FolderObjects:
    """Objects as files below a local folder: for one machine, and for tests.

    An object is written beside its place, made durable, and linked there: linking fails onto a
    name that exists.
    """

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        self.tries = 5
        self._folder = folder

    def __reduce__(self) -> tuple[type[FolderObjects], tuple[Path]]:
        return FolderObjects, (self._folder,)

    def create(self, name: str, data: bytes) -> Creation:
        """See :meth:`Objects.create`."""
        path, written = self._path(name), self._written(name, data)
        try:
            os.link(written, path)
        except FileExistsError:
            return Creation.TAKEN
        finally:
            written.unlink()
        fsync_directory(path.parent)
        return Creation.CREATED

    def _written(self, name: str, data: bytes) -> Path:
        """Return a durable file beside the place of an object."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.parent / f".{system.random_id().hex}.tmp"
        try:
            with written.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        return written

    def put(self, name: str, data: bytes) -> None:
        """See :meth:`Objects.put`."""
        self._written(name, data).replace(self._path(name))
        fsync_directory(self._path(name).parent)

    def put_pieces(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """See :meth:`Objects.put_pieces`."""
        self.create(name, b"".join(pieces()))

    def get(self, name: str) -> bytes | None:
        """See :meth:`Objects.get`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def get_range(self, name: str, position: int, size: int) -> bytes | memoryview | None:
        """See :meth:`Objects.get_range`."""
        try:
            with self._path(name).open("rb") as file:
                rest = os.fstat(file.fileno()).st_size - position
                data = os.pread(file.fileno(), max(0, min(size, rest)), position)
        except FileNotFoundError:
            return None
        if len(data) != size:
            raise LogDirectoryError(
                f"{self.root}/{name}: {len(data)} of the bytes {position} to {position + size} are "
                "there"
            )
        return data

    def list_after(self, folder: str, after: str = "", limit: int = 1 << 62) -> list[ObjectEntry]:
        """See :meth:`Objects.list_after`."""
        return sorted(e for e in self._walk(self._path(folder), "") if e.name > after)[:limit]

    def _walk(self, folder: Path, prefix: str) -> Iterator[ObjectEntry]:
        try:
            with os.scandir(folder) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            return
        for entry in found:
            if entry.is_dir():
                yield from self._walk(folder / entry.name, f"{prefix}{entry.name}/")
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            yield ObjectEntry(f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns)

    def delete(self, names: list[str]) -> None:
        """See :meth:`Objects.delete`."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name


# ----------------------------------------------------------------------------------------------
# A store that lets two create one name.


def check_create_is_exclusive(
    objects: Objects, folder: str, *, writers: int = 16, rounds: int = 8
) -> None:
    """Let many threads create one name at once, again and again, and see that one of them wins.

    One call after the other tells nothing: stores that look and then write pass it.

    Args:
        objects: the store.
        folder: where to try; its objects are deleted again.
        writers: how many threads try at a time.
        rounds: how many names they try.

    Raises:
        LogDirectoryError: two have won, or what lies there is not the winner's, or nobody can; or
            a listing does not show what was just created.
    """
    pool = system.pool(writers, "kafkalog-race")
    names = [f"{folder}/{system.random_id().hex}" for _ in range(rounds)]
    objects.list_after(folder)  # whatever keeps answers has this one
    try:
        for name in names:
            start = Barrier(writers)

            def attempt(number: int, name: str = name, start: Barrier = start) -> Creation:
                start.wait(60)
                return objects.create(name, b"%d" % number)

            attempts = [pool.submit(attempt, number) for number in range(writers)]
            wait(attempts)
            answers = [each.result() for each in attempts]
            won = [n for n, answer in enumerate(answers) if answer is Creation.CREATED]
            _check_race(objects, name, won, writers)
        _check_listing(objects, folder, names)
    finally:
        pool.shutdown()
        with suppress(LogDirectoryError):  # they are in nobody's way, and the verdict is
            objects.delete(names)


def _check_listing(objects: Objects, folder: str, names: list[str]) -> None:
    listed = {f"{folder}/{entry.name}" for entry in objects.list_after(folder)}
    missing = [name for name in names if name not in listed]
    if missing:
        raise LogDirectoryError(
            f"{objects.root}: {missing[0]} was created, and a listing after that does not show it. "
            "Whoever slept would not see there that old commits were cleaned up. Nothing was "
            "written but the objects of this trial. Use a store whose listings are up to date, as "
            "those of S3, Azure Blob Storage and Google Cloud Storage are, and no proxy that keeps "
            "answers"
        )


def _check_race(objects: Objects, name: str, won: list[int], writers: int) -> None:
    found = objects.get(name)
    if len(won) <= 1 and found is not None and found in [b"%d" % n for n in won or range(writers)]:
        return
    if found is None and not won:
        fault = "it created none, as if it did not know the condition If-None-Match"
    elif len(won) > 1:
        fault = f"it let {len(won)} of them create it"
    else:
        fault = f"it said {won} of them, and holds {found!r:.50}"
    raise LogDirectoryError(
        f"{objects.root}: of {writers} writers that create one object at the same time, a store "
        f"must let exactly one; {fault}. A log there would lose commits. Nothing was written but "
        "the objects of this trial. Use a store that keeps If-None-Match under a race, as S3, "
        "Azure Blob Storage and Google Cloud Storage do"
    )
