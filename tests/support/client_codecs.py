"""The record batches of two other clients, as judges of ours."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # kafka-python loads its protocol's schemas in a way that Python is giving up.
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioKafkaBuilder
    from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

__all__ = ["AioKafkaBuilder", "AioKafkaRecords", "KafkaPythonBuilder", "KafkaPythonRecords"]
