"""Write ``docs/troubleshooting.md`` from the error classes, so that the two cannot differ.

``python -m tools.errors_page > docs/troubleshooting.md``
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Final

from kafkalog import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["errors_page"]

_HEAD: Final = """\
# Troubleshooting

## By symptom

| what you see | why, and what to do |
| --- | --- |
| `DATA_SOURCE_NOT_FOUND` | Spark's Python lacks kafkalog: activate the environment, or set `PYSPARK_PYTHON` ([install.md](install.md)) |
| a stream shows no rows | a stream begins at `latest`: set `startingOffsets=earliest`. With a checkpoint it goes on where that is |
| `count()` does not grow | a batch DataFrame is as of its planning: call `load()` again |
| the query stands still | `kafkalog lag LOG --checkpoint C`. If nothing is behind: is somebody writing? If much is: is a commit or a lock waiting (`kafkalog topic describe LOG`, *unfinished*)? |
| the first batch is slow | the compiled kernels are made once for each user and machine: keep `~/.cache/kafkalog` |
| rows are there twice | the checkpoint was deleted, so it is another query. [A lost checkpoint](mistakes.md#a-lost-checkpoint) |
| rows are missing after a copy | `cp` and `rsync` take files of different moments: `kafkalog backup` ([operations.md](operations.md#copy-a-set-while-it-is-written)) |
| a broker does not start on the directory | `kafkalog broker handover` first ([operations.md](operations.md#giving-a-directory-to-a-broker)) |
| writing is refused where a broker lived | `kafkalog broker takeover`, then `allowBrokerDirectory=true` in each query |
| `names partition 1 …, which has 1 partition` | write `rows.select("key", "value")`, without the column `partition` |
| the disk fills up | topics without `retention.ms` keep everything: `kafkalog topic alter LOG -t T --config retention.ms=7d`, then `kafkalog retain LOG` |
| a bucket grows though records expired | a writer deletes nothing there: `kafkalog run maintain s3://…`. Objects go a day later, in a bucket with versions when the old ones expire ([buckets.md](buckets.md#maintenance)) |
| a bucket answers 403 | keys, region, clock, rights; `ListBucket` is needed ([buckets.md](buckets.md#rights)). On executors alone: they have no keys, as options do not reach other machines ([roles](buckets.md#keys-and-roles)) |
| a bucket is in another region | `storage.region`, or `AWS_REGION` |
| a certificate of a store is not trusted | `storage.caFile`, on each machine |
| a store is refused at the first append | it lets two writers win ([which do](buckets.md#which-store)) |
| a query on a bucket is slow | `kafkalog run maintain` merges what it reads; a commit takes 0.05 to 0.2 s there |
| a bucket was emptied | [what follows](buckets.md#when-something-goes-wrong) |
| `kafkalog run` hangs at its start | it fetches jars, and says so; `--offline` says which are missing |

## By error

```
StreamingQueryException: … LogDirectoryError: log directory /logs/a does not exist; check …
```

The name before the sentence is the class of the error. The sentence says which path, topic, partition and offset,
and what to do. Each is a `KafkaLogError` of `kafkalog.errors`. *Try again* means that the same call may succeed later with
nothing changed (`retriable`). [mistakes.md](mistakes.md) has what comes of common mistakes in Spark.

This page is generated from the classes.
"""


def errors_page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is errors.KafkaLogError:
            continue
        parents = [each.__name__ for each in kind.__mro__[1:] if each.__module__ == "builtins"]
        parent = kind.__mro__[1].__name__
        also = [f"a kind of `{parent}`"] if parent != "KafkaLogError" else []
        also += ["a `ValueError` too"] if "ValueError" in parents else []
        also += ["try again"] if kind.retriable else []
        yield f"### {name}\n"
        yield _meaning(kind) + (f" (*{', '.join(also)}*)" if also else "") + "\n"
        yield f"{kind.remedy}\n"


def _meaning(kind: type[errors.KafkaLogError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(errors_page())
