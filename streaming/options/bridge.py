"""Turn an error into one sentence with its remedy, for Spark and for callers.

Spark shows the whole traceback of a Python worker, causes first, and a reader has to look for its
end. An error that we raise on purpose says itself where the fault is. Its traceback and its cause
tell a user no more, so it leaves without them. ``kafkalog.border`` logs them at level DEBUG. An
error that nobody expected keeps its traceback: that is a fault of ours.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
from typing import TYPE_CHECKING, Final, Literal, ParamSpec, TypeVar, cast

from kafkalog.errors import KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.system import FULL
from kafkalog.streaming.options.declaring import instead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["crosses_border", "what_to_do", "without_history"]

_FULL: Final = (*FULL, errno.EFBIG)

_LOGGER = logging.getLogger("kafkalog.border")

_ASKED: Final[Mapping[str, Literal["consumer", "sink"]]] = {
    "Consumer": "consumer",
    "append": "sink",
}

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def crosses_border(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let errors leave a function, or what a generator function gives, as one sentence."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def crossing_step_by_step(*given: _Given.args, **named: _Given.kwargs) -> Iterator[object]:
            try:
                _refuse_others(called, names, named)
                yield from cast("Iterator[object]", function(*given, **named))
            except (KafkaLogError, OSError) as error:
                raise without_history(error) from None

        return cast("Callable[_Given, _Result]", crossing_step_by_step)

    @functools.wraps(function)
    def crossing(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        try:
            _refuse_others(called, names, named)
            return function(*given, **named)
        except (KafkaLogError, OSError) as error:
            raise without_history(error) from None

    return crossing


def _refuse_others(function: str, names: list[str], named: Mapping[str, object]) -> None:
    """Refuse arguments that a function does not have: options are tried first as such.

    Raises:
        OptionError: there is one, and the function takes options.
    """
    for name in named if "options" in names else ():
        if name not in names:
            instead = instead_of(name, asked=_ASKED.get(function, "query"))
            if instead is not None:
                raise OptionError(f"{function} has no argument {name!r}: {instead}")
            raise OptionError(
                f"{function} has no argument {name!r}. If it is an option of the source or the "
                f"sink: options={{{name!r}: …}}. Arguments: {', '.join(names)}"
            )


def without_history(error: KafkaLogError | OSError) -> KafkaLogError | OSError:
    """Return the error without traceback and cause; what a file system said, as a sentence.

    An error of a socket (a task that Spark has stopped) names no file and stays what it is.
    """
    if isinstance(error, OSError):
        if error.filename is None and not what_to_do(error):
            return error
        given: KafkaLogError = LogDirectoryError(_sentence(error))
    else:
        given = error
    _LOGGER.debug("%s", given, exc_info=error)
    given.__cause__ = given.__context__ = None
    return given.with_traceback(None)


def _sentence(error: OSError) -> str:
    files = [os.fsdecode(each) for each in (error.filename, error.filename2) if each is not None]
    where = f"{' and '.join(files)}: " if files else ""
    return f"{where}{error.strerror or error}{what_to_do(error)}"


def what_to_do(error: OSError) -> str:
    """Return the end of a sentence about a file system that is full; nothing for other errors."""
    if error.errno not in _FULL:
        return ""
    return "; make room there and run it again: what is committed stays as it is"
