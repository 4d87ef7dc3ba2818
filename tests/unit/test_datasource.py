from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kafkalog.errors import OptionError
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.readers import LogBatchReader, LogStreamReader
from kafkalog.streaming.spark.versions import HAS_FILTER_PUSHDOWN, ReadAllAvailable

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = StructType().add("value", "string")


def source(**given: str) -> KafkaLogDataSource:
    return KafkaLogDataSource(
        CaseInsensitiveDict({"path": "/logs", "subscribe": "t"} | given)  # as Spark hands them over
    )


def test_what_spark_looks_for_is_there_and_light() -> None:
    """Six kinds of process import it, most of them only to pass it on."""
    program = (
        "import sys, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"  # pyspark 4.0 itself imports numpy there
        "import pyspark_kafkalog as found\n"
        "print(found.DefaultSource.name())\n"
        "heavy = {'numba', 'numpy', 'pandas', 'pyarrow', 'lz4', 'zstandard', 'snappy', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules) - before))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["kafkalog", "[]"]


_OLDEST = """
import sys
from pyspark.sql import datasource
for name in ["Filter", *(kind.__name__ for kind in datasource.Filter.__subclasses__())]:
    delattr(datasource, name)
del datasource.DataSourceStreamArrowWriter
sys.modules["pyspark.sql.streaming.datasource"] = None
import pyspark_kafkalog
from kafkalog.streaming.spark import listeners, readers, versions, writers
print(versions.HAS_ADMISSION_CONTROL, versions.HAS_FILTER_PUSHDOWN)
"""


def test_nothing_is_imported_that_spark_4_0_does_not_have() -> None:
    if not HAS_FILTER_PUSHDOWN:
        pytest.skip("this Spark has not what is taken away")
    said = subprocess.check_output([sys.executable, "-c", _OLDEST], text=True)
    assert said == "False False\n"


def test_options_decide_the_schema() -> None:
    assert "headers" not in source().schema().fieldNames()
    assert source(includeHeaders="true").schema().fieldNames()[-1] == "headers"


def test_bad_options_are_refused_by_the_schema() -> None:
    with pytest.raises(OptionError, match="did you mean 'subscribe'"):
        source(subscribed="x").schema()
    with pytest.raises(OptionError, match="no regular expression"):
        KafkaLogDataSource({"path": "/logs", "subscribePattern": "("}).schema()


def test_readers_are_small_and_travel() -> None:
    for reader in (source().reader(SCHEMA), source().streamReader(SCHEMA)):
        assert isinstance(reader, LogBatchReader | LogStreamReader)
        pickled = cloudpickle.dumps(reader)
        assert len(pickled) < 5000
        assert type(cloudpickle.loads(pickled)) is type(reader)


@pytest.mark.parametrize(
    "first_call",
    [
        lambda reader: reader.prepareForTriggerAvailableNow(),
        lambda reader: reader.getDefaultReadLimit(),
        lambda reader: reader.initialOffset(),
        lambda reader: reader.latestOffset({}, ReadAllAvailable()),
        lambda reader: reader.partitions({}, {}),
        lambda reader: reader.read(InputPartition(())),
    ],
)
def test_a_streaming_reader_says_at_the_first_call_why_there_is_none(
    first_call: Callable[[DataSourceStreamReader], object],
) -> None:
    reader = source(endingOffsets="latest").streamReader(SCHEMA)
    with pytest.raises(OptionError, match="'endingOffsets' cannot be used in a streaming query"):
        first_call(reader)
    reader.stop()
