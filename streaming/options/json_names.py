"""JSON as people write it, with each name of an object once.

Of two values for one name, Python and Java take the last without a word: the other one is lost.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["RepeatedNameError", "parse_json"]


class RepeatedNameError(ValueError):
    """An object has a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has {name!r} twice")
        self.name = name


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - what JSON has
    """Parse a JSON text.

    Raises:
        RepeatedNameError: an object has a name twice.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RepeatedNameError(name)
        found[name] = value
    return found
