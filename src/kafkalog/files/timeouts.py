"""Calls on a folder with a time-out: a disk that does not answer is left out.

A disk that dies, or a server that is silent, may keep a call for minutes or for ever, and nothing
ends it. So the action runs in a thread that can be left behind. Whoever waits for it sees for how
long it has been at a folder without a sign of life. After the limit the thread is left behind, and
the action begins again in another thread, to which that folder is missing.

::

    with at(path): ...      what is done in a folder: whoever stalls here stalls there
    outlast(...)            runs an action, and again without a folder that stalls
    stalled(folder)         says that a call is still out there

It is as if a process had died in the call, and another one came after it, with one difference: what
the first one holds in other folders passes on to the second (:func:`hold`). What it holds in the
folder that stalls, it keeps until its call returns.

A thread that was left behind does nothing more once its call returns: it leaves ``at`` with
:class:`LeftBehind`, and cannot begin another one. So REQUIRES: what changes files of several
folders is done in an ``at`` for each, and whoever catches every exception changes none after it.
"""

from __future__ import annotations

import errno
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kafkalog.files.deferred_signals import current, run_as
from kafkalog.files.system import (
    forgotten_when_forked,
    remembered,
    start_thread_if_possible,
    system,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.files.closing import Closing
    from kafkalog.files.deferred_signals import Running

__all__ = ["LeftBehind", "at", "hold", "let_go", "run_with_timeout", "stalled", "taken_over"]

_T = TypeVar("_T")

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_LOOK_S: Final = 0.25
"""How long to wait at once, at most; a quarter of the limit where that is less."""

_ANYWHERE: Final[AbstractContextManager[None]] = nullcontext()


class LeftBehind(BaseException):
    """Ends a thread that was left behind; nobody waits for it any more."""


@forgotten_when_forked
class _Stalled(dict["Path", list[str]]):
    """What to say of the folders in which calls of this process are still out."""


def stalled(path: str | Path) -> OSError | None:
    """Return why a path is not to be touched now: a call in its folder has not returned."""
    for folder, whys in list(remembered(_Stalled).items()):  # one step, whoever changes it
        if f"{path}/".startswith(f"{folder}/"):
            for why in whys[:1]:
                return OSError(errno.ETIMEDOUT, why, str(path))
    return None


def run_with_timeout(action: Callable[[], _T], folders: Sequence[Path], limit_ms: int | None) -> _T:
    """Return what ``action`` does; it begins again without each of ``folders`` that stalls.

    A folder stalls in which nothing comes to an end for longer than ``limit_ms``. Signs of life are
    the beginning and the end of each ``at``, and each look whether the action is to stop. Without a
    limit it runs in this thread.

    REQUIRES: nothing interrupts this thread, or the action changes nothing that others see; and it
    may be cut off anywhere. Within another one it is a part of that.
    """
    if limit_ms is None or isinstance(current(), _AbandonableCall):
        return action()
    held: dict[tuple[Path, ...], Closing] = {}
    try:
        while True:
            going = _AbandonableCall(action, folders, held)
            if going.has_ended_within(limit_ms / 1000):
                return going.result()
    finally:
        while held:
            held.popitem()[1].close()


def at(path: Path | str) -> AbstractContextManager[object]:
    """Return what the work at ``path`` is done in, a folder of an action or something below one."""
    going = current()
    return going.at(path) if isinstance(going, _AbandonableCall) else _ANYWHERE


def hold(folders: Sequence[Path], closing: Closing) -> None:
    """Let what is held in ``folders`` pass on, should another folder stall."""
    going = current()
    if isinstance(going, _AbandonableCall):
        going.hold(tuple(folders), closing)


def let_go(folders: Sequence[Path]) -> bool:
    """Return whether it is up to the caller to close what it held: it has not passed on."""
    going = current()
    return not isinstance(going, _AbandonableCall) or going.let_go(tuple(folders))


def taken_over(folders: Sequence[Path]) -> Closing | None:
    """Return what the thread that was left behind had held in ``folders``, for this one to hold."""
    going = current()
    return going.take_over(tuple(folders)) if isinstance(going, _AbandonableCall) else None


class _AbandonableCall(Generic[_T]):
    """An action in a thread that can be left behind.

    ``is_asked_to_stop`` is that of whoever waits, until the thread is left behind: then it is so.
    """

    def __init__(
        self,
        action: Callable[[], _T],
        folders: Sequence[Path],
        inherited: dict[tuple[Path, ...], Closing],
    ) -> None:
        self._action = action
        self._folders = [(folder, str(folder), f"{folder}/") for folder in folders]
        self._inherited = inherited
        self._waiting: Running | None = current()
        self._held: dict[tuple[Path, ...], Closing] = {}
        self._lock = system.lock()
        self._places: list[Path] = []
        self._signs = 0
        self._left_at: Path | None = None
        self._values: list[_T] = []
        self._error: BaseException | None = None
        self._has_ended = False
        self._end = system.lock()
        self._end.acquire()

    # Whoever waits

    def has_ended_within(self, limit_s: float) -> bool:
        """Run the action; returns whether it came to its end, else its thread is left behind."""
        if not start_thread_if_possible(self._run):
            waiting = current()
            self._run()  # nobody can be left behind
            run_as(waiting)
        signs, since = -1, system.monotonic()
        while not self._has_ended:
            self._end.acquire(timeout=min(_LOOK_S, limit_s / 4))
            now = system.monotonic()
            if self._signs != signs:
                signs, since = self._signs, now
            elif now - since > limit_s and self._leave(signs, now - since):
                return False
        return True

    def result(self) -> _T:
        """Return what came of the action, or raise what it raised."""
        try:
            if self._error is not None:
                raise self._error
            return self._values[0]
        finally:
            self._error = None  # it has this frame in its traceback

    def _leave(self, signs: int, seconds: float) -> bool:
        """Leave the thread behind if it still is where it was; returns whether it is."""
        with self._lock:
            if not self._places or self._signs != signs or self._has_ended:
                return False
            self._left_at = folder = self._places[-1]
            whys = remembered(_Stalled).setdefault(folder, [])
            whys.append(f"a call there did not return within {seconds:.1f} s, and is still out")
            passing = [folders for folders in self._held if folder not in folders]
            self._inherited.update({folders: self._held.pop(folders) for folders in passing})
        _LOGGER.warning("%s is left alone until a call there returns", folder)
        return True

    # In the thread

    def _run(self) -> None:
        run_as(self)
        try:
            self._values.append(self._action())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        with self._lock:
            self._has_ended = True
            if self._left_at is not None:
                self._error = None
                remembered(_Stalled)[self._left_at].pop()
                _LOGGER.warning("the call in %s has returned", self._left_at)
        self._end.release()

    def at(self, path: Path | str) -> AbstractContextManager[object]:
        """Return what the work at ``path`` is done in."""
        text = str(path)  # a Path finds its parents slowly
        for folder, own, above in self._folders:
            if text == own or text.startswith(above):
                return _At(self, folder)
        return _ANYWHERE

    def come(self, folder: Path) -> None:
        """Begin to work in a folder.

        Raises:
            LeftBehind: nobody waits for that.
            OSError: another call is still out there.
        """
        with self._lock:
            self._check_awaited()
            why = stalled(folder)
            if why is not None:
                raise why
            self._places.append(folder)
            self._signs += 1

    def go(self) -> None:
        """End the work in the folder that was come to last.

        Raises:
            LeftBehind: nobody waits for what follows.
        """
        with self._lock:
            self._places.pop()
            self._signs += 1
            self._check_awaited()

    def _check_awaited(self) -> None:
        if self._left_at is not None:
            raise LeftBehind(str(self._left_at))

    def hold(self, folders: tuple[Path, ...], closing: Closing) -> None:
        """Note what is held in folders."""
        with self._lock:
            self._held[folders] = closing

    def let_go(self, folders: tuple[Path, ...]) -> bool:
        """Forget what is held; returns whether it has not passed on."""
        with self._lock:
            return self._held.pop(folders, None) is not None

    def take_over(self, folders: tuple[Path, ...]) -> Closing | None:
        """Take what a thread has left that was left behind."""
        return self._inherited.pop(folders, None)

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether the action is to stop where nothing is left half done; to ask is a sign of life.

        It is, too, once its thread was left behind.
        """
        self._signs += 1
        if self._left_at is not None:
            return True
        return self._waiting is not None and self._waiting.is_asked_to_stop

    @is_asked_to_stop.setter
    def is_asked_to_stop(self, asked: bool) -> None:
        if self._waiting is not None and self._left_at is None:
            self._waiting.is_asked_to_stop = asked


class _At:
    """The work of an action in one folder."""

    __slots__ = ("_folder", "_going")

    def __init__(self, going: _AbandonableCall[Any], folder: Path) -> None:
        self._going = going
        self._folder = folder

    def __enter__(self) -> None:
        self._going.come(self._folder)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._going.go()
