from __future__ import annotations

from kafkalog.streaming.spark.versions import HAS_FILTER_PUSHDOWN

# Spark 4.0 has no classes for filters.
collect_ignore = (
    []
    if HAS_FILTER_PUSHDOWN
    else ["test_changed_histories.py", "test_latest.py", "test_pushdown.py"]
)
