"""The options of stores: how one is opened and asked, and which remote tier a log goes on in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast
from urllib.parse import quote

from kafkalog.errors import OptionError
from kafkalog.files.paths import SCHEME, local_path
from kafkalog.files.storage import (
    RemoteRoot,
    StorageOptions,
    Tier,
    TieredRoot,
    read_key_file,
)
from kafkalog.streaming.options.declaring import Options, option, options_of
from kafkalog.streaming.options.kinds import BOOLEAN, TEXT, Kind, choice, duration_ms, integer, text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StoreOptions", "TierOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Options):
    """What reaches the store of a place that is a URI."""

    storage_endpoint: str | None = option(
        "storage.endpoint",
        text("a URL such as https://host:9000"),
        default=None,
        doc="the URL of the store (s3). Default: AWS",
    )
    storage_region: str | None = option(
        "storage.region", TEXT, default=None, doc="the bucket's region (s3)"
    )
    storage_access_key: str | None = option(
        "storage.accessKey",
        TEXT,
        default=None,
        secret=True,
        doc="the key's id (s3). Default: as AWS' own tools find it",
    )
    storage_secret_key: str | None = option(
        "storage.secretKey", TEXT, default=None, secret=True, doc="the key (s3)"
    )
    storage_session_token: str | None = option(
        "storage.sessionToken",
        TEXT,
        default=None,
        secret=True,
        doc="the token of a temporary key (s3)",
    )
    storage_anonymous: bool | None = option(
        "storage.anonymous", BOOLEAN, default=None, doc="ask without credentials (s3)"
    )
    storage_tries: int | None = option(
        "storage.tries",
        integer(minimum=1, maximum=1000),
        default=None,
        doc="tries of a request; rests between them double from 0.1 s to 5 s. Default: 5",
    )
    storage_timeout_ms: int | None = option(
        "storage.timeout",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="how long a try may wait (s3). Default: 30s",
    )
    storage_list_interval_ms: int | None = option(
        "storage.listInterval",
        duration_ms(),
        default=None,
        unit="ms",
        doc="how old a listing may be: new records are seen that late. Default: 5s",
    )
    storage_poll_interval_ms: int | None = option(
        "storage.pollInterval",
        duration_ms(minimum=1),
        default=None,
        unit="ms",
        doc="how often a log in a bucket is asked for its next commit, at most. Default: 1s",
    )
    storage_delete_delay_ms: int | None = option(
        "storage.deleteDelay",
        duration_ms(minimum=3_600_000),
        default=None,
        unit="ms",
        doc="how old an object that no commit names must be to be deleted. A batch that "
        "runs longer cannot commit. The log keeps it; a longer one is taken with the "
        "next commit. At least 1h. Default: what the log has, 1d in a new one",
    )
    storage_account_name: str | None = option(
        "storage.accountName",
        TEXT,
        default=None,
        doc="the storage account (az). Default: AZURE_STORAGE_ACCOUNT_NAME",
    )
    storage_account_key: str | None = option(
        "storage.accountKey",
        TEXT,
        default=None,
        secret=True,
        doc="the account's key (az, abfss). Default: as Azure's own tools find it",
    )
    storage_server_side_encryption: str | None = option(
        "storage.serverSideEncryption",
        choice("AES256", "aws:kms", "aws:kms:dsse"),
        default=None,
        doc="how the store encrypts what is written (s3). Default: as the bucket says",
    )
    storage_kms_key_id: str | None = option(
        "storage.kmsKeyId",
        TEXT,
        default=None,
        doc="the key by which it encrypts (s3); storage.serverSideEncryption is aws:kms "
        "then by default",
    )
    storage_requester_pays: bool | None = option(
        "storage.requesterPays",
        BOOLEAN,
        default=None,
        doc="who asks pays (s3)",
    )
    storage_path_style: bool | None = option(
        "storage.pathStyle",
        BOOLEAN,
        default=None,
        doc="whether the bucket stands in the path of a request (default), or in the host's"
        " name (s3)",
    )
    storage_role_arn: str | None = option(
        "storage.roleArn",
        TEXT,
        default=None,
        doc="the role to assume (s3); needs the extra `aws`",
    )
    storage_ca_file: str | None = option(
        "storage.caFile",
        TEXT,
        default=None,
        doc="certificates (PEM) to trust beside the machine's, on each machine",
    )
    storage_proxy: str | None = option(
        "storage.proxy",
        TEXT,
        default=None,
        secret=True,
        doc="the proxy's URL",
    )

    @property
    def storage(self) -> dict[str, object]:
        """The fields of :class:`~kafkalog.files.storage.StorageOptions` that are given, or None."""
        return {
            declared.field.removeprefix("storage_"): getattr(self, declared.field)
            for declared in options_of(StoreOptions)
        }

    def in_store(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return places, those that are URIs with how their store is opened.

        Tiered ones have that already: these options are a copy of others.
        """
        return tuple(
            p.with_options(self.storage)
            if isinstance(p, RemoteRoot) and not isinstance(p, TieredRoot)
            else p
            for p in paths
        )


# ----------------------------------------------------------------------------------------------
# Where segments lie that brokers have moved into a remote tier.


def _tier_root(text: str) -> RemoteRoot:
    """Read the place of a remote tier, which may be a local folder."""
    scheme = SCHEME.match(text.strip())
    if scheme is None or scheme[1].lower() == "file":
        folder = local_path(text.strip())
        return RemoteRoot(folder, StorageOptions(), f"file://{quote(folder)}")
    if not text.strip()[scheme.end() :].startswith("//"):
        raise ValueError
    return RemoteRoot.parse(_tier_scheme(text.strip()))


def _tier_scheme(place: str) -> str:
    """Return a URI with the scheme by which its store is read."""
    return f"s3://{place[6:]}" if place.lower().startswith("s3a://") else place


def _key_files(text: str) -> tuple[tuple[str, str], ...]:
    found = dict(_key_file(item) for item in text.split(",") if item.strip())
    if not found or len(found) < text.count("="):
        raise ValueError
    return tuple(sorted(found.items()))


def _key_file(item: str) -> tuple[str, str]:
    key_id, equals, path = item.strip().partition("=")
    if not equals or not key_id.strip() or not path.strip():
        raise ValueError
    return key_id.strip(), local_path(path.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions(StoreOptions):
    """A remote tier, which is read with the log directories or alone."""

    remote_path: str | None = option(
        "remote.path",
        Kind("a path or a URI such as s3://bucket/folder", _tier_root),
        default=None,
        doc="the remote tier of tiered topics (KIP-405): read with the log directories as "
        "one log. Without path, the tier alone. See [tiers.md](tiers.md)",
    )
    remote_layout: str | None = option(
        "remote.layout",
        choice("kafka", "aiven", "pinterest"),
        default=None,
        doc="the plugin that wrote the tier: kafka is LocalTieredStorage of Kafka's tests. "
        "Default: what lies there tells",
    )
    remote_encryption_keys: tuple[tuple[str, str], ...] | None = option(
        "remote.encryption.keys",
        Kind(
            "key ids with files of private keys (PEM), such as key1=/keys/1.pem,key2=…", _key_files
        ),
        default=None,
        doc="with aiven: files of the private RSA keys (PEM) by the ids in the manifests, "
        "such as key1=/keys/1.pem, on each machine; needs the extra `tiers`",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check and convert what the user wrote; a tier may stand alone for log directories.

        Raises:
            OptionError: as :meth:`Options.parse`.
        """
        names = {name.lower(): name for name in given}
        if "path" not in names and "remote.path" in names:
            given = {**given, "path": given[names["remote.path"]]}
        return super(TierOptions, cls).parse(given)

    def over_tier(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return places with the tier below them, if one is given.

        Raises:
            OptionError: how a tier is read is given without it, or it cannot lie below a place.
        """
        if self.remote_path is None:
            given = {
                "remote.layout": self.remote_layout,
                "remote.encryption.keys": self.remote_encryption_keys,
            }
            for name, value in given.items():
                if value:
                    raise OptionError(f"option {name!r} needs remote.path, where the tier lies")
            return paths
        if all(isinstance(each, TieredRoot) for each in paths):
            return paths
        (root,) = self.in_store((self.remote_path,))
        is_alone = len(paths) == 1 and _tier_scheme(paths[0]) == self.remote_path
        log_dirs = () if is_alone else paths
        for place in log_dirs:
            if isinstance(place, RemoteRoot) or getattr(place, "is_witness", False):
                raise OptionError(
                    "option 'remote.path' goes with the log directories of brokers on this "
                    f"machine, or alone, and path names {place}"
                )
        return self._over(cast("RemoteRoot", root), log_dirs)

    def _over(self, root: RemoteRoot, log_dirs: tuple[str, ...]) -> tuple[str, ...]:
        """Put the tier below log directories, after what can be told before its store is asked.

        Raises:
            OptionError: it is a file; or its keys cannot be read, or belong to no such layout.
        """
        folder = Path(root) if root.full_uri.startswith("file:") else None
        if folder is not None and folder.exists() and not folder.is_dir():
            raise OptionError(
                f"option 'remote.path' is {folder}, which is a file: name the folder that has the "
                "objects of the tier"
            )
        keys = self.remote_encryption_keys or ()
        if keys and self.remote_layout not in {None, "aiven"}:
            raise OptionError(
                f"option 'remote.encryption.keys' is for remote.layout=aiven: what "
                f"{self.remote_layout} has written is not encrypted"
            )
        for key in keys:
            read_key_file(*key)
        tier = Tier(root=root, layout=self.remote_layout, key_files=keys)
        return tuple(TieredRoot.of(log_dir, log_dirs, tier) for log_dir in (*log_dirs, None))
