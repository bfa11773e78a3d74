"""The company in which a keyed group's messages failed: whose fault it was is told by who fails alone afterwards. In memory, and pure.

A message that failed often is dealt alone, so that a bad one takes no others along. Once one of those that failed together has
failed alone, it was the reason, as far as anybody knows: the others are spared, and dealt in company again. A restart forgets all
of this; then each of them is dealt alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ALONE_ATTEMPTS = 2  # so often failed, a message is dealt alone


class _Company:
    """Messages that failed together."""

    __slots__ = ("is_spared",)

    def __init__(self) -> None:
        self.is_spared = False


class Companies:
    """The companies of one group's messages that came back, by the messages' ids."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Company] = {}

    def failed(self, ids: Sequence[bytes]) -> None:
        """These failed together, or one alone, which spares those with which it failed before."""
        if len(ids) == 1:
            former = self._of.pop(ids[0], None)
            if former is not None:
                former.is_spared = True
            return
        company = _Company()
        for message_id in ids:
            self._of[message_id] = company

    def forget(self, ids: Iterable[bytes]) -> None:
        """These come back no more."""
        for message_id in ids if self._of else ():
            self._of.pop(message_id, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._of.clear()

    def is_alone(self, message_id: bytes, attempts: int, attempts_max: int) -> bool:
        """True when the next attempt of a message is alone: it failed often and is not spared, or that is the last one."""
        if 0 < attempts == attempts_max - 1:
            return True  # whatever is known: nothing becomes a dead letter for another's failure
        company = self._of.get(message_id)
        return attempts >= ALONE_ATTEMPTS and not (company is not None and company.is_spared)
