"""Decode bytes as Java does, show text from outside so that it is inert, and write metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Metric", "decode_as_java", "metrics_text", "printable", "shortened"]

_REPLACEMENT: Final = "\ufffd".encode()
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
"""Half of a UTF-16 pair, encoded by itself: one fault to Java, one for each byte to Python."""


def decode_as_java(data: bytes) -> str:
    """Decode UTF-8 with U+FFFD for each malformed sequence, as ``new String(data, UTF_8)``."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def printable(text: str) -> str:
    r"""Return a text from outside as errors, logs and tables show it: on one line, inert.

    Names, keys and paths may hold line breaks, escape sequences of terminals, letters that change
    the direction of those around them, and halves of surrogate pairs (bytes that are not UTF-8).
    Each is shown as Python writes it: ``\n``, ``\x1b``, ``\u202e``, ``\udcff``.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def shortened(text: str, most: int = 200) -> str:
    """Return a text for an error or a log: of one longer than ``most`` characters how it begins."""
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of Prometheus: its values by labels. One whose name ends in ``_total`` only grows.

    Attributes:
        name: with its unit: ``kafkalog_lag_seconds``.
        help: what it counts, in one sentence.
        samples: labels and a value, for each time series.
    """

    name: str
    help: str
    samples: list[tuple[Mapping[str, object], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: object) -> None:
        """Add a time series, where there is a value."""
        if value is not None:
            self.samples.append((labels, value))


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Write metrics as Prometheus reads them, as a page or a file of the node exporter.

    One without time series is left out.

    Source: Prometheus "Exposition formats", text format 0.0.4.
    """
    return "".join(f"{line}\n" for each in metrics if each.samples for line in _metric_lines(each))


def _metric_lines(metric: Metric) -> Iterator[str]:
    kind = "counter" if metric.name.endswith("_total") else "gauge"
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {kind}"
    for labels, value in metric.samples:
        shown = ",".join(f'{name}="{_escaped(str(text))}"' for name, text in labels.items())
        yield f"{metric.name}{{{shown}}} {value}" if shown else f"{metric.name} {value}"


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a half of a surrogate pair
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
