"""Lags of queries for monitoring: Prometheus' text format, and JSON lines.

Source: Prometheus "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["QueryLag", "json_lines", "prometheus_text"]

_LAG: Final = "kafkalog_query_lag_offsets"
_BATCH: Final = "kafkalog_query_batch_id"
_HELP: Final = {
    _LAG: "Offsets that are committed and were not read at the end of the last micro-batch.",
    _BATCH: "The number of the last micro-batch.",
}


@dataclass(frozen=True, slots=True)
class QueryLag:
    """How far one query was behind at the end of a micro-batch.

    Attributes:
        query: its id, which outlasts restarts.
        name: its name, if it has one.
        batch_id: the micro-batch.
        sources: for each of its sources the lag of each partition, in offsets.
    """

    query: str
    name: str | None
    batch_id: int
    sources: Sequence[Mapping[TopicPartition, int]]


def prometheus_text(lags: Iterable[QueryLag]) -> str:
    """Write lags as Prometheus reads them, as a page or a file of the node exporter."""
    known = list(lags)
    lines = [*_metric(_BATCH, ((_query_labels(each), each.batch_id) for each in known))]
    lines += _metric(_LAG, ((labels, lag) for each in known for labels, lag in _by_partition(each)))
    return "".join(f"{line}\n" for line in lines)


def json_lines(lags: Iterable[QueryLag]) -> str:
    """Write a line for each partition of each source of each query."""
    return "".join(
        json.dumps({**labels, "batch_id": each.batch_id, "lag_offsets": lag}) + "\n"
        for each in lags
        for labels, lag in _by_partition(each)
    )


def _query_labels(lag: QueryLag) -> dict[str, str | int]:
    return {"query": lag.query, "name": lag.name or ""}


def _by_partition(lag: QueryLag) -> Iterator[tuple[dict[str, str | int], int]]:
    for number, source in enumerate(lag.sources):
        for (topic, partition), offsets in sorted(source.items()):
            place: dict[str, str | int] = {"source": number, "topic": topic, "partition": partition}
            yield {**_query_labels(lag), **place}, offsets


def _metric(name: str, samples: Iterable[tuple[Mapping[str, str | int], int]]) -> Iterator[str]:
    yield f"# HELP {name} {_HELP[name]}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
