from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.spark import small_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one session that all these tests share; starting one takes seconds."""
    with small_session() as session:
        yield session
