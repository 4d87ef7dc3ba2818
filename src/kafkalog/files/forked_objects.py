"""Ask an object store in a process that was forked after its parent had asked one.

The store's client has threads, which a fork does not copy: a request would wait for ever. So such a
process starts another one, with threads of its own, which asks for it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import forgotten_when_forked, remembered, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kafkalog.files.storage import RemoteRoot

__all__ = ["forward_after_fork", "serve"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PIECE_BYTES: Final = 1 << 20
_SERVE: Final = """
from kafkalog.files.forked_objects import serve
from kafkalog.files.objects import open_objects
serve(open_objects)
"""


class _ClientOwner:
    """Which process has the threads of the store's client: the first one that asked."""

    def __init__(self) -> None:
        self.process_id = system.process_id()


def forward_after_fork(*, if_lost: object = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Have another process call a method of a store, where a fork has left this one no threads.

    The store has its place as ``place``.

    Args:
        if_lost: what is returned if that process ends before it answers; without it an error is
            raised.
    """

    def decorate(method: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(method)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if remembered(_ClientOwner).process_id == system.process_id():
                return method(*args, **kwargs)
            store: Any = args[0]
            try:
                found: _T = remembered(_Helper).call(store.place, method.__name__, args[1:], kwargs)
            except _LostError:
                if if_lost is None:
                    raise
                return cast("_T", if_lost)
            return found

        return call

    return decorate


class _LostError(LogDirectoryError):
    """The process that was asked has not answered."""


@forgotten_when_forked
class _Helper:
    """A process that asks stores for this one, a request after the other; it ends with this one.

    A question is a pickle: the place, a method, its arguments. So is the answer: whether the method
    returned, and what it returned or raised.
    """

    def __init__(self) -> None:
        self._using = system.lock()
        self._process: subprocess.Popen[bytes] | None = None

    def call(
        self, place: RemoteRoot, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # noqa: ANN401
        """Call a method of a store there; return what it returns, or raise what it raises."""
        if name == "put_pieces":
            return self._put_pieces(place, *args)
        with self._using:
            try:
                has_returned, answer = self._ask((place, name, args, kwargs))
            except (OSError, EOFError) as error:
                self._end()
                raise _LostError(
                    f"{place}: {name} {args[0]!r}: the process that asks the store for this one, "
                    f"{system.process_id()}, which was forked, has ended: try again"
                ) from error
            except BaseException:  # what comes next would be the answer to this
                self._end()
                raise
        if has_returned:
            return answer
        raise answer

    def _ask(self, question: object) -> tuple[bool, Any]:
        if self._process is None:
            self._process = _start()
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        answer: tuple[bool, Any] = pickle.load(self._process.stdout)  # noqa: S301 - ours
        return answer

    def _put_pieces(
        self, place: RemoteRoot, name: str, pieces: Callable[[], Iterable[bytes]]
    ) -> None:
        with tempfile.NamedTemporaryFile(prefix="kafkalog-") as file:
            for piece in pieces():
                file.write(piece)
            file.flush()
            self.call(place, "put_pieces_of", (name, file.name), {})

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for who is asked for
    )


def serve(open_objects: Callable[[RemoteRoot], object]) -> None:
    """Answer what :class:`_Helper` asks on standard input, until it ends."""
    asked = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            place, name, args, kwargs = pickle.load(asked)  # noqa: S301 - ours
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            if name == "put_pieces_of":
                name, args = "put_pieces", (args[0], partial(_pieces_of, args[1]))
            found = getattr(open_objects(place), name)(*args, **kwargs)
            answer = True, bytes(found) if isinstance(found, memoryview) else found
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
            answer = False, error
        pickle.dump(answer, answers)
        answers.flush()


def _pieces_of(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:  # noqa: PTH123 - a name that was sent
        while piece := file.read(_PIECE_BYTES):
            yield piece
