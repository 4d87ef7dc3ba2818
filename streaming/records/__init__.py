"""The bytes of record batches and message sets, both ways. Knows no files and no Spark.

``batch_layout``, ``batch``, ``batch_rows``
    where the fields of a batch lie; headers, and checksums; a row per batch.
``columns``, ``row_buffers``
    batches in, Arrow columns out.
``builder``
    columns in, batches out, and their offsets.
``message_sets``, ``control``
    magic 0 and 1; markers of transactions.
``compression``
    the codecs.
``jit``, ``arrow_buffers``, and what ends in ``_kernels``
    loops as machine code over plain arrays, each beside the table of its format.

Read ``batch_layout`` first, then ``columns``.
"""

import sys
from importlib.util import find_spec

from kafkalog.errors import MissingPackageError

_PACKAGES = ("crc32c", "lz4", "numba", "numpy", "pyarrow", "snappy", "zstandard")

if _missing := [name for name in _PACKAGES if name not in sys.modules and not find_spec(name)]:
    raise MissingPackageError(
        f"kafkalog needs {', '.join(_missing)}, which {sys.executable} does not have: install "
        "kafkalog there with pip, or send the archive that make bundle builds (a zip has no "
        "compiled packages)"
    )
