"""Kafka's own dump tool as a judge: ``kafka.tools.DumpLogSegments`` over many files at once.

The tool ends with status 0 whatever it found. What counts as a finding here: anything on its error
stream that is not the logger's own noise, a batch that is printed as invalid, bytes after the last
batch, an exception, and a file that it never came to. An exception ends the tool, so it is started
again behind the file that caused it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.jars import KAFKA, KAFKA_VERSION
from tests.support.jvm import command, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FILES_PER_RUN: Final = 300
"""They are one argument, which the system bounds at 128 KiB."""

_NOISE: Final = ("SLF4J:", "WARNING:", "log4j:")
_DUMPING: Final = "Dumping "
_FIELD: Final = re.compile(r"(\w+): (\S+)")
_TOOL: Final = (
    "kafka.tools.DumpLogSegments"
    if KAFKA_VERSION.startswith("4.1.")
    else "org.apache.kafka.tools.DumpLogSegments"
)
_NO_FINDING: Final = re.compile(
    r"^Non-consecutive offsets in .*\n *-1 is followed by \d+\n(?! *\d+ is followed by)"
    r"|^ *-1 is followed by \d+\n",
    re.MULTILINE,
)
"""What the tool of 4.4 says of each file that does not begin at 0, its own broker's too.

The heading stays where offsets follow that are a finding.
"""

_INVALID: Final = ("isvalid: false", "invalid bytes at the end of")


@dataclass(frozen=True)
class DumpReport:
    """What the tool printed: its findings, and per ``.log`` file the header fields of batches."""

    findings: list[str] = field(default_factory=list)
    batches: dict[Path, list[dict[str, str]]] = field(default_factory=dict)


def dump_log_segments(
    files: Iterable[Path], *, deep: bool = True, index_sanity: bool = False
) -> DumpReport:
    """Have the tool check ``.log``, ``.index`` and ``.timeindex`` files.

    Args:
        files: an index file is checked against the ``.log`` (and ``.index``) file beside it.
        deep: decode every record of ``.log`` files and check that offsets have no holes.
        index_sanity: run only the sanity check that a broker runs when it loads index files,
            which wants ``.index`` and ``.timeindex`` files alone.
    """
    report = DumpReport()
    options = ["--deep-iteration", "--skip-record-metadata"] if deep else []
    if index_sanity:
        options = ["--index-sanity-check"]
    waiting = [str(path) for path in files]
    while waiting:
        chunk = waiting[:_FILES_PER_RUN]
        done = _dump(chunk, options, report)
        waiting = waiting[done:]
    return report


def partition_files(directory: Path) -> list[Path]:
    """Return the files of all partitions under a log directory that the tool can check."""
    kinds = ("*/*.log", "*/*.index", "*/*.timeindex")
    return sorted(itertools.chain.from_iterable(directory.glob(kind) for kind in kinds))


def _dump(files: Sequence[str], options: Sequence[str], report: DumpReport) -> int:
    """Run the tool once, add to the report, and give the number of files dealt with (>= 1)."""
    ended = run(
        command(
            KAFKA,
            _TOOL,
            *options,
            *("--max-message-size", str(64 << 20)),
            *("--files", ",".join(files)),
            heap="512m",
        )
    )
    reached = _read_output(ended.stdout, report)
    said = _NO_FINDING.sub("", ended.stderr)
    noted = [line for line in said.splitlines() if not line.startswith(_NOISE)]
    report.findings.extend(line for line in noted if line.strip())
    if ended.returncode != 0:
        culprit = files[max(len(reached), 1) - 1]
        report.findings.append(f"{culprit}: the tool ended with status {ended.returncode}")
        return max(len(reached), 1)
    report.findings.extend(f"{path}: never dumped" for path in files if path not in reached)
    return len(files)


def _read_output(text: str, report: DumpReport) -> list[str]:
    """Add invalid batches and batch headers to the report; give the files that were begun."""
    reached: list[str] = []
    for line in text.splitlines():
        if line.startswith(_DUMPING):
            reached.append(line.removeprefix(_DUMPING))
        elif any(mark in line for mark in _INVALID):
            report.findings.append(f"{reached[-1]}: {line}")
        if " isvalid: " in line:
            report.batches.setdefault(Path(reached[-1]), []).append(dict(_FIELD.findall(line)))
    return reached
