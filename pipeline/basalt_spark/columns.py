"""The columns of a row, by name. Their Spark and Arrow types are in `schema`, which needs pyspark."""

from __future__ import annotations

from difflib import get_close_matches

from basalt.errors import InputError

TOPIC = "topic"
WATERMARK = "watermark"
CONTROL = "control"

DEFAULT_COLUMNS = (TOPIC, "id", "publish_time", "key", "value", "tx_id", WATERMARK, CONTROL)
COLUMNS = (*DEFAULT_COLUMNS, "headers", "event_time", "sequence", "generation")
MADE_HERE = frozenset({TOPIC, WATERMARK, CONTROL})  # the same in all rows of a task, so no server sends them


def chosen_columns(names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that option `columns` names; `InputError` names one that does not exist."""
    for name in names:
        if name not in COLUMNS:
            near = get_close_matches(name.lower(), COLUMNS, n=1, cutoff=0.5)
            meant = f"did you mean {near[0]}?" if near else f"they are {', '.join(COLUMNS)}"
            raise InputError(f"option columns: a row has no {name!r}: {meant}", field="columns")
    return names
