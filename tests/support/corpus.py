"""The corpus of real brokers' log directories: unpack a case, and judge what was read from it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkalog.model import TimestampType

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["CAPTURED_LIVE", "CASES", "CORPUS", "UnpackedCase"]

CORPUS: Final = Path(__file__).parents[1] / "data" / "corpus"

CASES: Final = sorted(path.parent.name for path in CORPUS.glob("*/expected.parquet"))
_META: Final = {name: json.loads((CORPUS / name / "meta.json").read_text()) for name in CASES}
CAPTURED_LIVE: Final = frozenset(name for name in CASES if _META[name]["capture"] != "clean")
"""Their checkpoints lag behind, their indexes have zero tails and no final time index entries."""

_TIMESTAMP_TYPES: Final = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class UnpackedCase:
    """One case, unpacked into a folder of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        self._case = CORPUS / name
        self._directory = directory
        self._judge = _compare()
        differing = self._judge.unpack(str(self._case), str(directory))
        assert not differing, f"{name} did not unpack as it was captured: {differing}"

    @property
    def path(self) -> str:
        """The log directories, as the option ``path`` wants them."""
        log_dir = self._directory / "logdir"
        several = sorted(log_dir.glob("d[0-9]"))
        return ",".join(map(str, several or [log_dir]))

    @property
    def topics(self) -> str:
        """All topics, internal ones too, as the option ``subscribe`` wants them."""
        return ",".join(sorted(json.loads((self._case / "offsets.json").read_text())["topics"]))

    def differences(
        self, rows: Iterable[dict[str, Any]], *, isolation: str = "read_uncommitted"
    ) -> list[str]:
        """Compare rows of the source with what real clients read at an isolation level.

        ``timestamp`` is in ms, ``headers`` a list of mappings or None, the rest as in the source.
        """
        actual = [row | {"ts_type": _TIMESTAMP_TYPES[row["timestampType"]]} for row in rows]
        for row in actual:
            row["headers"] = tuple((h["key"], h["value"]) for h in row["headers"] or ())
        _, _, found = self._judge.records(
            str(self._case), actual, isolation, ignore=("leader_epoch",)
        )
        return list(found)

    @property
    def live_folders(self) -> set[str]:
        """The folders of the partitions that a broker serves."""
        return {f"{each['topic']}-{each['partition']}" for each in self.partitions}

    def folder(self, name: str) -> str:
        """Return the path of a partition's folder, or of one that was one."""
        (found,) = (path for root in self.path.split(",") for path in Path(root).glob(name))
        return str(found)

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """What a broker says of each partition: log_start, high_watermark, lso and more."""
        found: list[dict[str, Any]] = json.loads((self._case / "offsets.json").read_text())[
            "partitions"
        ]
        return found

    def changed_files(self) -> list[str]:
        """List the files that are other than they were captured; a reader changes none."""
        return list(self._judge.check(str(self._case), str(self._directory)))


def _compare() -> ModuleType:
    """Load the corpus's own judge, which lies beside the data."""
    spec = importlib.util.spec_from_file_location("corpus_compare", CORPUS / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
