"""From the name of a place to its path: local, or in a store."""

from __future__ import annotations

from pathlib import Path

from kafkalog.files.storage import RemoteRoot

__all__ = ["as_path"]


def as_path(place: str | Path) -> Path:
    """Return the path of a log directory, or of what a slice names."""
    if isinstance(place, RemoteRoot):
        from kafkalog.files.remote_store import open_store  # noqa: PLC0415 - loads pyarrow.fs

        return open_store(place).root
    return Path(place) if isinstance(place, str) else place
