"""Control batches: a transaction's markers, which take up offsets and are no rows.

Source: Kafka ``ControlRecordType``, ``EndTransactionMarker``.
"""

from __future__ import annotations

import numpy as np

from kafkalog.streaming.records.batch import CONTROL_MASK, BatchTable

__all__ = ["as_data_batches"]


def as_data_batches(table: BatchTable) -> BatchTable:
    """Give a copy of a table by which a decoder decodes control records like any others."""
    plain = BatchTable(table.facts.copy())
    np.bitwise_and(plain.attributes, ~CONTROL_MASK, out=plain.attributes)
    return plain
