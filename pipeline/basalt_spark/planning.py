"""Ranges cut into tasks. Tasks follow each other as the messages do: Spark keeps the order of partitions."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from basalt_spark.read_options import PARTITIONS_MAX, ReadOptions
from basalt_spark.reading import RangePartition

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client


# A task costs some 50 ms of a core, and reads some 300 MB a second: with less for one a large read would go into starting them.
PARTITION_BYTES = 64 * 1024**2


def partitions_of(
    client: Client, options: ReadOptions, whole: RangePartition, size_bytes: int | None = None
) -> list[RangePartition]:
    """The tasks that read this range together, in order. `size_bytes` is how large it is, where that is known."""
    if whole.after is not None and whole.after >= whole.through:
        return []
    wanted = ceil(options.partitions_min / len(options.topics))
    if wanted == 1 and size_bytes is not None and size_bytes <= PARTITION_BYTES:
        return [whole]  # most micro-batches; asking would cost them a call
    topic = client.topic(whole.topic.topic, namespace=whole.topic.namespace)
    if size_bytes is None:
        size_bytes = sum(
            split.bytes for split in topic.splits(whole.after, whole.through, 1, isolation=options.isolation)
        )
    wanted = min(PARTITIONS_MAX, max(wanted, ceil(size_bytes / PARTITION_BYTES)))
    if wanted <= 1:
        return [whole]
    splits = topic.splits(whole.after, whole.through, wanted, isolation=options.isolation)
    return [
        RangePartition(whole.topic, split.after, split.through, whole.generation, whole.watermark_ms)
        for split in splits
    ]
