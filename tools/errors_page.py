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

```
StreamingQueryException: … LogDirectoryError: log directory /logs/a does not exist; check …
```

The name before the sentence is the class of the error, one of `kafkalog.errors`. Look it up here.
The sentence itself says which path, topic, partition and offset, and often what to do. All classes
below are kinds of `KafkaLogError`, so `except KafkaLogError` catches each of them.
[mistakes.md](mistakes.md) has the sentences of the command line.

*Try again* says whether the same call may succeed later with nothing changed (`retriable`).

This page is generated from the classes and their `remedy`.
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
        yield f"## {name}\n"
        yield _meaning(kind) + "\n"
        yield f"- **What to do**: {kind.remedy}"
        yield f"- **Try again**: {'yes' if kind.retriable else 'no'}"
        if parent != "KafkaLogError":
            yield f"- **A kind of**: `{parent}`"
        if "ValueError" in parents:
            yield "- **In Python** it is a `ValueError` too"
        yield ""


def _meaning(kind: type[errors.KafkaLogError]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(errors_page())
