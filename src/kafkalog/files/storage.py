"""Storage options: the URI of a log directory, and how its store is opened.

A :class:`RemoteRoot` is a log directory's URI with all that is needed to open the store. Its text
may be shown: what stands in the URI before ``@`` and after ``?`` is moved into its options.

Secrets are a type of their own, :class:`Secret`: they are not pickled with the rest.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from kafkalog.errors import LogDirectoryError, OptionError
from kafkalog.files.regular import read_regular
from kafkalog.files.system import remembered, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "CA_FILE_ADVICE",
    "LOG_FINDERS",
    "SECRET_OPTIONS",
    "STORE",
    "UNTRUSTED",
    "RemoteRoot",
    "Secret",
    "StorageOptions",
    "Tier",
    "TieredRoot",
    "is_object_uri",
    "opening_stores",
    "read_key_file",
    "with_secrets",
]

STORE: Final = "_kafkalog/store"
"""The object that tells the id of a log that is kept as objects, in its root."""

_OBJECT_SCHEMES: Final = frozenset({"s3", "s3a", "az", "abfss", "gs"})
"""Of the stores in which a log can be written."""

LOG_FINDERS: Final[list[Callable[[RemoteRoot], Path | None]]] = []
"""What finds a log that is kept as objects, as of now; packages above this one add to it."""

_QUERY: Final = {
    "endpoint_override": "endpoint",
    "endpoint": "endpoint",
    "region": "region",
    "scheme": "protocol",
    "anonymous": "anonymous",
    "access_key": "access_key",
    "secret_key": "secret_key",
    "session_token": "session_token",
}
"""Parameters of an S3 URI, by the names that pyarrow gives them, and what they set here."""


def is_object_uri(place: object) -> bool:
    """Whether a place is the URI of a store in which a log can be written."""
    return isinstance(place, str) and place.partition("://")[0].lower() in _OBJECT_SCHEMES


# ----------------------------------------------------------------------------------------------
# Secrets on their way to the processes of this machine.

_SECRETS: Final = ("access_key", "secret_key", "session_token", "account_key", "proxy")
"""Those of the options of a store."""

SECRET_OPTIONS: Final = frozenset(f"storage.{name.replace('_', '')}" for name in _SECRETS)
"""The same as a user names them, in lower case."""

_KEPT_S: Final = 30 * 86_400
"""How long a secret is kept that nobody asks for."""

_CONTAINER_FIRST: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes of URIs in which the name of a container stands before ``@``."""

_ELSEWHERE: Final = (
    "a secret that is given as an option stays on the machine where it was given. Let the others "
    "find theirs: by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AZURE_STORAGE_ACCOUNT_KEY "
    "(spark.executorEnv.NAME sets a variable for Spark's executors), by a profile, or by the "
    "machine's role"
)


class Secret(str):
    """A secret that a user has given: text, which no ``repr`` shows and no pickle has.

    The pickle names a file that only this user can read, in the machine's memory where it has such
    a file system. So Spark's processes on one machine share it. On another one the secret is the
    empty text.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"

    def __reduce__(self) -> tuple[Callable[[str], Secret], tuple[str]]:
        return _kept_secret, (_keep(self) if self else "",)


def with_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return options as a user gave them, in which secrets are a :class:`Secret`."""
    return {
        name: Secret(value)
        if name.lower() in SECRET_OPTIONS or ("://" in value and ("@" in value or "?" in value))
        else value
        for name, value in options.items()
    }


def _keep(secret: str) -> str:
    """Keep a secret for the other processes of this user and machine; return its name there."""
    faults = []
    for place in ("/dev/shm", tempfile.gettempdir()):  # noqa: S108 - a folder of our own below it
        try:
            folder = _folder_for_secrets(place)
            name = blake2b(secret.encode(), key=_key_of(folder), digest_size=20).hexdigest()
            try:
                os.utime(folder / name)
            except FileNotFoundError:
                _remove_unused(folder)
                _create(folder, name, secret.encode())
        except OSError as error:
            faults.append(f"{place}: {error}")
        else:
            return f"{folder}/{name}"
    raise OptionError(
        "a secret that is given as an option cannot be kept for the other processes of this "
        f"machine ({'; '.join(faults)}). Leave it out, and let each process find its own: by "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role"
    )


def _folder_for_secrets(place: str) -> Path:
    """Return a folder that nobody else can look into."""
    folder = Path(place, f"kafkalog-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _key_of(folder: Path) -> bytes:
    """Return what a secret's name is made with, so that nobody finds it by trying names."""
    try:
        return (folder / "key").read_bytes()
    except FileNotFoundError:
        _create(folder, "key", system.random_id().bytes + system.random_id().bytes)
        return (folder / "key").read_bytes()


def _create(folder: Path, name: str, content: bytes) -> None:
    """Create a file at once and whole; one that is there already stays."""
    written = folder / f".{system.random_id().hex}"
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    try:
        os.link(written, folder / name)
    except FileExistsError:
        return
    finally:
        written.unlink()


def _remove_unused(folder: Path) -> None:
    oldest_s = system.time_ns() / 1e9 - _KEPT_S
    for path in folder.iterdir():
        if path.name != "key" and path.lstat().st_mtime < oldest_s:
            path.unlink(missing_ok=True)


def _kept_secret(path: str) -> Secret:
    try:
        secret = Path(path).read_text() if path else ""
        if path:
            os.utime(path)
    except OSError:
        return Secret()
    return Secret(secret)


def _is_elsewhere(secret: str | None) -> bool:
    """Whether a secret was given on another machine, and is not known here."""
    return isinstance(secret, Secret) and not secret


# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How a store is opened and asked; what is None is left to the store's own defaults."""

    endpoint: str | None = None
    protocol: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    anonymous: bool = False
    tries: int = 5
    timeout_ms: int = 30_000
    list_interval_ms: int = 5_000
    poll_interval_ms: int = 1_000
    delete_delay_ms: int | None = None
    server_side_encryption: str | None = None
    kms_key_id: str | None = None
    requester_pays: bool = False
    path_style: bool | None = None
    role_arn: str | None = None
    ca_file: str | None = None
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Let secrets be such, whoever gives them."""
        for name in _SECRETS:
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, Secret(given))

    def without_secrets(self, text: str) -> str:
        """Return a text in which no secret stands, for people to read."""
        for secret in (self.secret_key, self.session_token, self.account_key, self.proxy):
            if secret:
                text = text.replace(secret, "…")
        return text

    def found_here(self) -> StorageOptions:
        """Return the options without keys that this machine does not know: it looks for its own.

        Raises:
            OptionError: without the proxy, which only the other machine knows, nothing is reached.
        """
        if _is_elsewhere(self.proxy):
            raise OptionError(
                "option 'storage.proxy' is not known on this machine: it may have a password, and "
                f"{_ELSEWHERE}; a proxy, by HTTPS_PROXY"
            )
        here = self
        if any(map(_is_elsewhere, (self.access_key, self.secret_key, self.session_token))):
            here = replace(here, access_key=None, secret_key=None, session_token=None)
        if _is_elsewhere(self.account_key):
            here = replace(here, account_key=None)
        return here

    def with_endpoint_of_environment(self) -> StorageOptions:
        """Return the options with the endpoint of S3 that AWS' own tools find, if none is given."""
        named = (os.environ.get(f"AWS_ENDPOINT_URL{suffix}") for suffix in ("_S3", ""))
        found = next(filter(None, named), None)
        return self if self.endpoint or not found else replace(self, endpoint=found)

    @property
    def advice_elsewhere(self) -> str:
        """What to do where the store refuses, and keys were given on another machine alone."""
        lost = any(_is_elsewhere(getattr(self, name)) for name in _SECRETS)
        return f". The keys are those of this machine: {_ELSEWHERE}" if lost else ""

    def merged(self, given: Mapping[str, object]) -> StorageOptions:
        """Return these options, replaced by others where those are given."""
        return replace(self, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


UNTRUSTED: Final = re.compile(r"certificate|peer cert", re.IGNORECASE)
"""What a client of a store says of one that it does not trust."""

CA_FILE_ADVICE: Final = (
    "the store's certificate is none that this machine trusts: name the file of the authority that "
    "has signed it (PEM) as storage.caFile"
)


class _OfProcess:
    """How this process opens a store of which its URI says nothing more."""

    def __init__(self) -> None:
        self.options = StorageOptions()


@contextmanager
def opening_stores(given: Mapping[str, object]) -> Iterator[None]:
    """Have every store whose URI is read meanwhile opened so, as a command was told.

    Args:
        given: fields of :class:`StorageOptions`; None is as not given.
    """
    ours = remembered(_OfProcess)
    before, ours.options = ours.options, ours.options.merged(given)
    try:
        yield
    finally:
        ours.options = before


class RemoteRoot(str):
    """A log directory's URI, without secrets; ``options`` has what was taken out of it.

    Text in all other respects, and picklable.
    """

    __slots__ = ("full_uri", "options")

    options: StorageOptions
    full_uri: str
    """As the user wrote it; for stores that take their options from it."""

    def __new__(cls, uri: str, options: StorageOptions, full_uri: str) -> Self:
        """Take what :meth:`parse` has taken apart."""
        made = super().__new__(cls, uri)
        made.options = options
        made.full_uri = full_uri
        return made

    def __reduce__(self) -> tuple[type[RemoteRoot], tuple[str, StorageOptions, str]]:
        return RemoteRoot, (str(self), self.options, self.full_uri)

    @classmethod
    def parse(cls, text: str) -> RemoteRoot:
        """Read a URI; an S3 one may carry options as pyarrow's URIs do.

        Raises:
            OptionError: a parameter that is not known; no value is shown.
        """
        uri = urlsplit(text, allow_fragments=False)  # a key may well have a #
        user, _, host = uri.netloc.rpartition("@")
        clean = f"{uri.scheme.lower()}://{host}{uri.path.rstrip('/')}"
        if uri.scheme.lower() != "s3":
            is_container = uri.scheme.lower() in _CONTAINER_FIRST and ":" not in user
            may_tell = uri.query or (user and not is_container)
            return cls(clean, remembered(_OfProcess).options, Secret(text) if may_tell else text)
        found: dict[str, object] = {}
        for name, value in parse_qsl(uri.query, keep_blank_values=True):
            if name not in _QUERY:
                raise OptionError(
                    f"{clean} has the parameter {name!r}, known are {', '.join(sorted(_QUERY))}"
                )
            known = _QUERY[name]
            found[known] = value.lower() == "true" if known == "anonymous" else value
        if user:
            access, _, secret = user.partition(":")
            found |= {"access_key": unquote(access), "secret_key": unquote(secret)}
        return cls(clean, remembered(_OfProcess).options.merged(found), "")

    def uri_here(self) -> str:
        """Return the URI as the user wrote it.

        Raises:
            OptionError: it has a secret, and was given on another machine.
        """
        if _is_elsewhere(self.full_uri):
            raise OptionError(f"{self}: its URI has a secret, and {_ELSEWHERE}")
        return self.full_uri or str(self)

    def open_log(self) -> Path | None:
        """Return the root of a log that is kept as objects; None of any other place."""
        return next((log for find in LOG_FINDERS if (log := find(self)) is not None), None)

    def with_options(self, given: Mapping[str, object]) -> Self:
        """Return the same place with other options where those are given.

        What the URI itself says counts more.
        """
        in_uri = {
            entry.name: getattr(self.options, entry.name)
            for entry in fields(StorageOptions)
            if getattr(self.options, entry.name) != entry.default
        }
        merged = StorageOptions().merged(given).merged(in_uri)
        return type(self)(str(self), merged, self.full_uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What a remote tier is: where it lies, and how its plugin has written it."""

    root: RemoteRoot
    layout: str | None = None
    """``kafka``, ``aiven`` or ``pinterest``; None: what lies there tells."""
    key_files: tuple[tuple[str, str], ...] = ()
    """The file with the private key of each key id: paths alone, never a key."""


_KEY_LIMIT: Final = 1 << 16


def read_key_file(key_id: str, path: str) -> bytes:
    """Read the file with the private key of a key id.

    Raises:
        OptionError: it cannot be read.
    """
    try:
        return read_regular(Path(path), limit=_KEY_LIMIT)
    except (OSError, LogDirectoryError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            f"option 'remote.encryption.keys': the file of {key_id!r}, {path}, cannot be read: "
            f"{why}; it must be there on each machine"
        ) from None


class TieredRoot(RemoteRoot):
    """A log directory whose partitions go on in a remote tier.

    ``log_dir`` is None for the partitions of the tier that are in none of the ``log_dirs``, which
    are all those of the broker. Of copies of several brokers' directories, ``node`` says whose it
    is, as :class:`~kafkalog.files.paths.NodePlace` does.
    """

    __slots__ = ("log_dir", "log_dirs", "node", "tier")

    node: int | None

    log_dir: str | None
    log_dirs: tuple[str, ...]
    tier: Tier

    @classmethod
    def of(cls, log_dir: str | None, log_dirs: tuple[str, ...], tier: Tier) -> TieredRoot:
        """Put a tier below a log directory, or take what it has beside those."""
        made = cls(log_dir or str(tier.root), tier.root.options, tier.root.full_uri)
        made.log_dir, made.log_dirs, made.tier = log_dir, log_dirs, tier
        made.node = getattr(log_dir, "node", None)
        return made

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from others; as a text it is equal to its directory."""
        return self.log_dir, self.log_dirs, self.tier, self.options, self.full_uri

    def __reduce__(self) -> tuple[Callable[..., TieredRoot], tuple[object, ...]]:  # type: ignore[override]
        return TieredRoot.of, (self.log_dir, self.log_dirs, self.tier)
