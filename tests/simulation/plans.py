"""What a history is to be: who acts, on what, and how much goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.layouts import Layout
    from tests.simulation.scheduler import Decision, Rates

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What is to happen: actors by name with their kind and operations, and how much goes wrong.

    ``script`` has the decisions; None to draw them from the seed. ``nodes`` are those of a set of
    several, None where there is one of so many ``directories``.
    """

    seed: str
    actors: Mapping[str, tuple[str, int]]
    directories: int
    partitions: int
    options: Mapping[str, str]
    rates: Rates
    extras: frozenset[str] = frozenset()
    """What else is so: see ``EXTRAS`` of :mod:`tests.simulation.simulation`."""
    script: tuple[Decision, ...] | None = None
    nodes: Layout | None = None
