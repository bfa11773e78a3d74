"""A topic as options, offsets and rows name it: `namespace:topic`, or the topic alone in the option `namespace`."""

from __future__ import annotations

import re
from typing import NamedTuple

from basalt.errors import InputError

_PART = re.compile(r"[A-Za-z0-9_-]{1,255}")


class TopicName(NamedTuple):
    """A topic of a namespace."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.topic}"


def topic_name(text: str, namespace: str, option: str) -> TopicName:
    """The topic that this text names; `namespace` is where it lies when the text does not say."""
    parts = text.strip().split(":")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise InputError(
            f"option {option}: {text!r} is no topic's name: write topic or namespace:topic,"
            " each 1 to 255 of A-Z a-z 0-9 _ -",
            field=option,
        )
    return TopicName(namespace, parts[0]) if len(parts) == 1 else TopicName(parts[0], parts[1])
