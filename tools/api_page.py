"""Write ``docs/api.md`` from the public docstrings, so that the two cannot differ.

``python -m tools.api_page > docs/api.md``
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final

import kafkalog
from kafkalog.model import TopicPartition
from kafkalog.streaming.api import Outcome
from kafkalog.streaming.lookup.block_cache import CacheStats
from kafkalog.streaming.spark.listeners import GroupOffsetsListener, LagListener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["api_page"]

_HEAD: Final = """\
# Python API

```python
import kafkalog

kafkalog.append("/var/kafka-logs", "flights", rows)
```

Import each name from the module below it. [python.md](python.md) shows how they are used.
[options.md](options.md) has the options, and [troubleshooting.md](troubleshooting.md) the errors.

- `Paths` is one log directory, or several: text, a `Path`, text with commas between them, or a
  sequence of these.
- `OptionValues` are options by name. A value may be text, a number, true or false; offsets may be a
  dict, a time a `datetime`.

This page is generated from the docstrings.
"""

_MODULES: Final = {
    "kafkalog": [name for name in kafkalog.__all__ if name != "__version__"],
    "kafkalog.streaming.spark.listeners": [LagListener.__name__, GroupOffsetsListener.__name__],
    "kafkalog.streaming.api": [Outcome.__name__, CacheStats.__name__],
    "kafkalog.model": [TopicPartition.__name__],
}
_FOR_APPEND: Final = "publishing"
"""A method of ``Consumer`` that nobody else calls."""

_PARTS: Final = {
    "Args:": "It takes:",
    "Returns:": "It returns",
    "Yields:": "It gives",
    "Raises:": "It raises:",
}
_ROLE: Final = re.compile(r":[a-z]+:`[~.]*(?:[\w.]*\.)?(\w+)`")
_ITEM: Final = re.compile(r"^(\w[\w, ]*): ")


def api_page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for module, names in _MODULES.items():
        for name in names:
            found = getattr(sys.modules[module], name)
            yield f"## {name}\n\n*{module}*\n"
            if inspect.isclass(found):
                yield from _class(found)
            else:
                yield from _function(name, found)


def _class(kind: type) -> Iterator[str]:
    yield from _text(kind)
    if hasattr(kind, "_fields") or is_dataclass(kind):
        yield from _signature(kind.__name__, kind)
    elif "__init__" in vars(kind):
        yield from _function(kind.__name__, kind.__init__)  # type: ignore[misc]
    for name, each in vars(kind).items():
        if name.startswith("_") or name == _FOR_APPEND or not inspect.getdoc(each):
            continue
        if isinstance(each, property):
            yield f"### {kind.__name__}.{name}\n"
            yield from _text(each)
        elif inspect.isfunction(each):
            yield f"### {kind.__name__}.{name}()\n"
            yield from _function(name, each)


def _function(name: str, found: Callable[..., Any]) -> Iterator[str]:
    yield from _signature(name, found)
    yield from _text(found)


def _signature(name: str, found: Callable[..., Any]) -> Iterator[str]:
    signature = inspect.signature(found)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    parts, is_named = [], False
    for each in given:
        if each.kind is each.KEYWORD_ONLY and not is_named:
            is_named = True
            parts.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        kind = getattr(each.annotation, "__forward_arg__", each.annotation)  # of a NamedTuple
        parts.append(f"{each.name}: {kind}{default}")
    is_long = len(parts) > 2
    inner = "".join(f"\n    {part}," for part in parts) + "\n" if is_long else ", ".join(parts)
    has_none = inspect.isclass(found) or signature.return_annotation == "None"
    result = "" if has_none else f" -> {signature.return_annotation}"
    yield f"```python\n{name}({inner}){result}\n```\n"


def _text(found: object) -> Iterator[str]:
    """Give a docstring as Markdown: each entry of a section becomes a line of a list."""
    is_listed = False
    for line in _plain(inspect.getdoc(found) or "").split("\n"):
        if line in _PARTS:
            is_listed = line in {"Args:", "Raises:"}
            yield f"{_PARTS[line]}\n" if is_listed else _PARTS[line]
        elif is_listed and (item := _ITEM.match(line.removeprefix("    "))):
            names = ", ".join(f"`{each}`" for each in item[1].split(", "))
            yield f"- {names}: {line.removeprefix('    ')[item.end() :]}"
        else:
            is_listed = is_listed and (not line or line.startswith("    "))
            yield f"  {line.strip()}" if is_listed and line else line.strip()
    yield ""


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(api_page())
