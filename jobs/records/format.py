r"""Records as text, by the tokens of kcat: ``%t %p %o %k %s\n``.

=====  ==================================================================
``%s``  value, ``%S`` its length (-1 for null), ``%R`` that as four bytes
``%k``  key, ``%K`` its length
``%t``  topic, ``%p`` partition, ``%o`` offset, ``%T`` timestamp in ms
``%h``  headers as ``name=value,name=value``
``%%``  a per cent sign
=====  ==================================================================

``\n \r \t \0`` and ``\xNN`` stand for a byte. A null is printed as nothing, as in kcat.

Source: kcat 1.7 ``format.c``.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RecordFormat", "delimiter_of"]

_LENGTH: Final = struct.Struct(">i")
_BYTES: Final = {"0": b"\0", "n": b"\n", "r": b"\r", "t": b"\t"}
_PARTS: Final = re.compile(
    r"%(?P<letter>.?)|\\(?P<escape>x[0-9A-Fa-f]{1,2}|.)|[^%\\]+|\\", re.DOTALL
)


def _number(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    return lambda row: str(-1 if row[name] is None else row[name]).encode()


def _data(name: str) -> Callable[[Mapping[str, Any]], bytes]:
    return lambda row: row[name] or b""


def _length(name: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda row: -1 if row[name] is None else len(row[name])


def _headers(row: Mapping[str, Any]) -> bytes:
    return b",".join(map(_header, row["headers"] or ()))


def _header(header: Mapping[str, Any]) -> bytes:
    value = b"NULL" if header["value"] is None else header["value"]
    return header["key"].encode("utf-8", "surrogateescape") + b"=" + value  # type: ignore[no-any-return]


_TOKENS: Final[dict[str, Callable[[Mapping[str, Any]], bytes]]] = {
    "s": _data("value"),
    "S": lambda row: str(_length("value")(row)).encode(),
    "R": lambda row: _LENGTH.pack(_length("value")(row)),
    "k": _data("key"),
    "K": lambda row: str(_length("key")(row)).encode(),
    "t": lambda row: row["topic"].encode(),
    "p": _number("partition"),
    "o": _number("offset"),
    "T": _number("timestamp"),
    "h": _headers,
}

_ESCAPED: Final = re.compile(r"\\(?P<escape>x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)


def delimiter_of(option: str, text: str) -> bytes:
    r"""Return the bytes of a delimiter, which may be written ``\t`` or ``\x1f``, as for kcat.

    Raises:
        OptionError: it is empty.
    """
    if not text:
        raise OptionError(f"{option} is empty")
    data = bytearray()
    end = 0
    for found in _ESCAPED.finditer(text):
        data += text[end : found.start()].encode("utf-8", "surrogateescape")
        data += _escaped(found["escape"])
        end = found.end()
    return bytes(data + text[end:].encode("utf-8", "surrogateescape"))


class RecordFormat:
    """A format, parsed once."""

    def __init__(self, text: str) -> None:
        """Parse.

        Raises:
            OptionError: a token that there is not.
        """
        self._parts: list[bytes | Callable[[Mapping[str, Any]], bytes]] = []
        for found in _PARTS.finditer(text):
            self._parts.append(_part(found))

    def line(self, row: Mapping[str, Any]) -> bytes:
        """Return the bytes of a record with ``key``, ``value`` and header values as bytes."""
        return b"".join(part if isinstance(part, bytes) else part(row) for part in self._parts)


def _part(found: re.Match[str]) -> bytes | Callable[[Mapping[str, Any]], bytes]:
    letter, escape = found["letter"], found["escape"]
    if letter == "%":
        return b"%"
    if letter is not None:
        if letter not in _TOKENS:
            raise OptionError(
                f"--format has %{letter}, expected one of %{' %'.join(_TOKENS)} and %%"
            )
        return _TOKENS[letter]
    if escape is None:
        return found[0].encode("utf-8", "surrogateescape")
    return _escaped(escape)


def _escaped(escape: str) -> bytes:
    """Return the byte that stands behind a backslash."""
    if len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    return _BYTES.get(escape, escape.encode("utf-8", "surrogateescape"))
