"""The words of a story's command, and the durations among them."""

from __future__ import annotations

import re
from typing import NamedTuple

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([+-]?\d+)(ms|s|m|h|d)")


class Words(NamedTuple):
    """A command's words after its name: plain ones, and those of the form NAME=VALUE."""

    plain: list[str]
    named: dict[str, list[str]]

    @classmethod
    def of(cls, words: list[str]) -> Words:
        plain: list[str] = []
        named: dict[str, list[str]] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                named.setdefault(name, []).append(value)
            else:
                plain.append(word)
        return cls(plain, named)

    def take(self, name: str) -> str | None:
        """The value of an option, which is not left for others."""
        values = self.named.pop(name, None)
        return None if values is None else values[0]


def milliseconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    assert found is not None, f"{text} is no duration"
    return int(found[1]) * UNITS_MS[found[2]]
