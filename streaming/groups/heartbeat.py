"""The thread that says that a member lives, while its owner works on what it has read.

Ten times a second it looks; it writes when a heartbeat is due. It watches the others, too, so that
somebody knows who was lost when the owner asks. It takes no lock of the group or the set, and
decides nothing.

An owner that has not asked for more for ``max.poll.interval.ms`` is taken for stuck. Then a member
leaves; one with a ``group.instance.id`` only falls silent, as Kafka's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import FencedMemberError, KafkaLogError
from kafkalog.files.shield import start_thread_if_possible
from kafkalog.files.system import system
from kafkalog.streaming.groups.watch import LOOK_S

if TYPE_CHECKING:
    from kafkalog.streaming.groups.membership import Membership

__all__ = ["Heartbeat"]

_LOGGER: Final = logging.getLogger("kafkalog.groups")


class Heartbeat:
    """One thread for one member, from :meth:`start` to :meth:`stop`."""

    def __init__(self, member: Membership, *, max_poll_interval_ms: int, is_static: bool) -> None:
        self._member = member
        self._longest_s = max_poll_interval_ms / 1000
        self._is_static = is_static
        self._polled_s = system.monotonic()
        self._is_stopped = False
        self.is_overdue = False
        """Whether the owner was taken for stuck: the member is lost."""

    def start(self) -> None:
        """Begin. Where no thread can be started, the owner's own rounds have to do."""
        self.polled()
        start_thread_if_possible(self._run)

    def polled(self) -> None:
        """Take note that the owner asks for more."""
        self._polled_s = system.monotonic()

    def stop(self) -> None:
        """Let the thread end at its next look."""
        self._is_stopped = True

    def look(self) -> bool:
        """Do what is due; return whether there is anything left to do."""
        if self._is_stopped:
            return False
        try:
            if system.monotonic() - self._polled_s > self._longest_s:
                self.is_overdue = True
                if not self._is_static:
                    self._member.vanish()
                return False
            self._member.beat()
        except FencedMemberError:
            return False  # its owner finds out
        except (KafkaLogError, OSError) as error:
            _LOGGER.debug("a member cannot look at its group: %s", error, exc_info=error)
        return True

    def _run(self) -> None:
        while self.look():
            system.sleep(LOOK_S)
