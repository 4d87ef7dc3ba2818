"""Storage options: the URI of a log directory, and how its store is opened.

A :class:`RemoteRoot` is a log directory's URI with all that is needed to open the store. Its text
may be shown: what stands in the URI before ``@`` and after ``?`` is moved into its options.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["LOG_FINDERS", "STORE", "RemoteRoot", "StorageOptions", "is_object_uri"]

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

    def without_secrets(self, text: str) -> str:
        """Return a text in which no secret stands, for people to read."""
        for secret in (self.secret_key, self.session_token, self.account_key, self.proxy):
            if secret:
                text = text.replace(secret, "…")
        return text

    def merged(self, given: Mapping[str, object]) -> StorageOptions:
        """Return these options, replaced by others where those are given."""
        return replace(self, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


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
        host = uri.netloc.rpartition("@")[2]
        clean = f"{uri.scheme.lower()}://{host}{uri.path.rstrip('/')}"
        if uri.scheme.lower() != "s3":
            return cls(clean, StorageOptions(), text)
        found: dict[str, object] = {}
        for name, value in parse_qsl(uri.query, keep_blank_values=True):
            if name not in _QUERY:
                raise OptionError(
                    f"{clean} has the parameter {name!r}, known are {', '.join(sorted(_QUERY))}"
                )
            known = _QUERY[name]
            found[known] = value.lower() == "true" if known == "anonymous" else value
        user = uri.netloc.rpartition("@")[0]
        if user:
            access, _, secret = user.partition(":")
            found |= {"access_key": unquote(access), "secret_key": unquote(secret)}
        return cls(clean, StorageOptions().merged(found), "")

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
