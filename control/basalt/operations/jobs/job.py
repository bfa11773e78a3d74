"""What a scheduled job is, to those who write one and to the scheduler."""

from __future__ import annotations

from typing import Protocol, TypeAlias

Report: TypeAlias = dict[str, int | str]


class Job(Protocol):
    """Work that is done every now and then. Each run is bounded, lets others have their turn, and may be repeated."""

    @property
    def name(self) -> str:
        """Lower case and hyphens; as in the settings, the API and the command line."""
        ...

    @property
    def help(self) -> str:
        """One line for people."""
        ...

    @property
    def interval_ms(self) -> int:
        """From one start to the next, where the settings do not say it."""
        ...

    async def run(self) -> Report:
        """Do it, and tell what was done, in few words; an empty report says that there was nothing to do."""
        ...
