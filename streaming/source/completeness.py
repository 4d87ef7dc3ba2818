"""Look at log directories until all that their commit state names seems to be there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.files.deferred_signals import pause
from kafkalog.streaming.store.ends.missing_parts import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.loss import LossPolicy
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.store.ends.missing_parts import MissingParts

__all__ = ["CompletenessCheck"]

_LOGGER: Final = logging.getLogger("kafkalog.source")


class CompletenessCheck:
    """Looks at log directories until all seems to be there, and says what is not."""

    def __init__(self, logs: EndOffsets, options: ReadOptions, policy: LossPolicy) -> None:
        self._logs = logs
        self._options = options
        self._policy = policy
        self._said = NOTHING

    def look(
        self,
        look: Callable[[], PartitionOffsets],
        *,
        is_whole: Callable[[], bool] = lambda: True,
        concerns: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> PartitionOffsets:
        """Look, as often as the query wants where something seems lost; return the ends.

        ``is_whole`` may name other reasons to look again, and ``concerns`` partitions that matter.

        Raises:
            DataLossError: something is missing, and the query fails then.
        """
        ends = look()
        for _ in range(self._options.fetch_retries - 1):
            parts = self._parts(concerns)
            if is_whole() and (parts == self._said or not parts.is_loss):
                break
            pause(self._options.fetch_retry_interval_ms / 1000)
            self._logs.ask_stores_again()
            ends = look()
        self._say(self._parts(concerns))
        return ends

    def _parts(self, concerns: Callable[[TopicPartition], bool]) -> MissingParts:
        parts = self._logs.missing_parts()
        concerned = {key: end for key, end in parts.partitions.items() if concerns(key)}
        return parts._replace(partitions=concerned)

    def _say(self, parts: MissingParts) -> None:
        if parts.is_loss:
            if self._policy.fails or parts != self._said:
                self._policy.parts_missing(str(parts))
        elif parts.members is not None and parts != self._said:
            _LOGGER.warning("%s", parts)
        self._said = parts
