"""Apache Arrow: its library, which a server may have or not, and the few types that messages have in it.

This is the one place that imports pyarrow, when it is first needed. Format: docs/formats/arrow.md.
"""

from __future__ import annotations

import functools
from typing import Any

from basalt.errors import UnsupportedMediaTypeError

ARROW = b"application/vnd.apache.arrow.stream"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@functools.cache
def library() -> Any:
    """The pyarrow package; `UnsupportedMediaTypeError` where it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise UnsupportedMediaTypeError(
            "this server has no Arrow library",
            hint="Install basalt-mq[arrow] where the server runs; or use poll and records, in Avro or JSON.",
        ) from None
    return pa
