"""Which failures of a store are asked about again, and which are final."""

from __future__ import annotations

from typing import NoReturn

import pytest

from kafkalog.errors import LogDirectoryError
from kafkalog.files.remote_store import RemoteStore
from kafkalog.files.storage import RemoteRoot


def tries_of(said: str) -> int:
    """Let a store fail with the message, and return how many times it was asked, 2 at most."""
    root = RemoteRoot.parse("s3://archive/logs").with_options({"tries": 2})
    asked = []

    def fail() -> NoReturn:
        asked.append(said)
        raise OSError(said)

    with pytest.raises(LogDirectoryError) as caught:
        RemoteStore(root).trying("it failed", fail)
    assert str(caught.value).startswith(f"it failed (tries: {len(asked)}): {said}; ")
    return len(asked)


@pytest.mark.parametrize(
    "said",
    [
        "AWS Error ACCESS_DENIED during ListObjectsV2 operation: Access Denied",
        "AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.",
        "When getting information for key 'a' in bucket 'b': 403 Forbidden",
        "AWS Error SIGNATURE_DOES_NOT_MATCH during GetObject operation",
    ],
)
def test_a_refusal_is_final(said: str) -> None:
    assert tries_of(said) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Transferred a partial file; Details: end of response with 1040384 bytes missing",
        "end of response with 403 bytes missing",
        "When reading 'archive/403/t-0/00000000000000000403.log': AWS Error SLOW_DOWN",
        "AWS Error UNKNOWN (HTTP status 503) during GetObject operation",
    ],
)
def test_a_number_with_403_in_it_is_no_refusal(said: str) -> None:
    assert tries_of(said) == 2
