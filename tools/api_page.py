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

Import each name from the module below it. [python.md](python.md) shows how they are used,
[options.md](options.md) has the options, and [troubleshooting.md](troubleshooting.md) the errors.
`help(kafkalog.append)`, and *API by module* on the site, explain each argument and error.

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
_FOR_OTHERS: Final = ("_", "publishing", "note_failure", "on")
"""What methods begin with that Spark or ``append`` calls, not a user."""

_PARTS: Final = {
    "Returns:": "It returns",
    "Yields:": "It gives",
}
_ROLE: Final = re.compile(r":[a-z]+:`[~.]*(?:[\w.]*\.)?(\w+)`")


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
    if methods := [*_methods(kind)]:
        yield from ("Methods and properties:\n", *methods, "")


def _methods(kind: type) -> Iterator[str]:
    """Give a line for each method and property that others call."""
    for name, each in vars(kind).items():
        if name.startswith(_FOR_OTHERS) or not inspect.getdoc(each):
            continue
        if inspect.isfunction(each) or isinstance(each, property):
            shown = name if isinstance(each, property) else _shown(name, each, is_long=False)
            yield f"- `{shown}`: {' '.join(_before_sections(each).split())}"


def _function(name: str, found: Callable[..., Any]) -> Iterator[str]:
    yield from _signature(name, found)
    yield from _text(found)


def _signature(name: str, found: Callable[..., Any]) -> Iterator[str]:
    yield f"```python\n{_shown(name, found, is_long=True)}\n```\n"


def _shown(name: str, found: Callable[..., Any], *, is_long: bool) -> str:
    """Return a signature: a line for each argument, if there are many and it is to be long."""
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
    is_long = is_long and len(parts) > 2
    inner = "".join(f"\n    {part}," for part in parts) + "\n" if is_long else ", ".join(parts)
    has_none = inspect.isclass(found) or signature.return_annotation == "None"
    return f"{name}({inner})" + ("" if has_none else f" -> {signature.return_annotation}")


def _text(found: object) -> Iterator[str]:
    """Give a docstring as Markdown, without its arguments and errors."""
    text = _plain(inspect.getdoc(found) or "").partition("\nRaises:")[0]
    for part in re.split(r"\n(?=(?:Args|Returns|Yields):\n)", text):
        title, _, rest = part.partition("\n")
        if title in _PARTS:
            yield f"{_PARTS[title]} {' '.join(rest.split())}\n"
        elif title != "Args:":
            yield part.strip() + "\n"


def _before_sections(found: object) -> str:
    text = _plain(inspect.getdoc(found) or "")
    return re.split(r"\n(?:Args|Returns|Yields|Raises):\n", text)[0]


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    sys.stdout.write(api_page())
