"""Base class whose ``close`` ends a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Closing"]


class Closing(ABC):
    """Closes itself at the end of ``with``."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what is open; closing twice does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
