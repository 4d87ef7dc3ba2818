"""Mutations: what is taken out of the code, and by which patches.

A patch replaces a piece of a function's source, wherever that is called from. A piece that is not
there any more, or twice, is a failure: the patch does not apply.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Instead", "Mutation", "applied", "find_function", "full_name"]

_PACKAGE: Final = "kafkalog.streaming"


class Instead(NamedTuple):
    """A piece of a function's source, and what is there in its place: nothing, unless given."""

    code: str
    other: str = "pass"


@dataclass(frozen=True)
class Mutation:
    """A guard that is taken out.

    ``breaks`` says what comes of it. ``patches`` replace attributes, or pieces of code, by name.
    ``actors`` and ``faults`` are those of the histories that look for it, ``options`` the topic's;
    ``drawn`` are fields of the plan that are not drawn.
    """

    breaks: str
    patches: Mapping[str, Any]
    actors: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def applied(patches: Mapping[str, Any]) -> Iterator[None]:
    """Patch what is named, below ``kafkalog.streaming`` or by its full name.

    With :class:`Instead` a function's own code is changed; anything else replaces an attribute.

    Raises:
        AttributeError, LookupError: there is no such name, or piece of code, any more.
    """
    with contextlib.ExitStack() as undo:
        for place, given in patches.items():
            full = full_name(place)
            if isinstance(given, Instead):
                function = find_function(full)
                undo.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = _changed(full, given.code, given.other)
            else:
                undo.enter_context(patch(full, given))
        yield


def full_name(place: str) -> str:
    """Complete a name that is short for one below ``kafkalog.streaming``."""
    return place if place.startswith("kafkalog") else f"{_PACKAGE}.{place}"


def find_function(full: str) -> FunctionType:
    """Find a function by its full name, below whatever it is wrapped in."""
    parts = full.split(".")
    for size in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found: Any = importlib.import_module(".".join(parts[:size]))
            break
    else:
        raise AttributeError(full)
    for name in parts[size:]:
        found = inspect.getattr_static(found, name)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    found = inspect.unwrap(getattr(found, "__func__", found))
    if isinstance(found, FunctionType):
        return found
    raise LookupError(f"{full} is no function")


@functools.cache
def _changed(full: str, code: str, other: str) -> CodeType:
    """Compile a function's module with a piece of the function replaced; return its code."""
    function = find_function(full)
    path = inspect.getfile(function)
    lines, first = inspect.getsourcelines(function)
    body = "".join(lines)
    if body.count(code) != 1:
        raise LookupError(f"{full} has {body.count(code)} times: {code}")
    text = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    before, after = text[: first - 1], text[first - 1 + len(lines) :]
    changed = "".join([*before, body.replace(code, other), *after])
    return _find(compile(changed, path, "exec", dont_inherit=True), function.__qualname__)


def _find(code: CodeType, name: str) -> CodeType:
    found = [code]
    while found:
        each = found.pop()
        if each.co_qualname == name:
            return each
        found += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    raise LookupError(name)
