"""A log in a store that is a folder, under a place of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkalog.files.objects import FolderObjects
from kafkalog.files.storage import RemoteRoot
from kafkalog.files.system import system
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import BucketRoot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _opens_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test know of logs whose names another one has used."""
    monkeypatch.setattr(system, "memory", {})


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderObjects:
    objects = FolderObjects(tmp_path / "bucket")
    monkeypatch.setattr(bucket_store, "open_objects", lambda _: objects)
    return objects


@pytest.fixture
def root(objects: FolderObjects, tmp_path: Path) -> BucketRoot:
    del objects
    return BucketRoot.of(
        RemoteRoot.parse(f"s3a://bucket{tmp_path}").with_options({"poll_interval_ms": -1})
    )
