"""Whether a checkpoint is of this query: of the same topics, of the same installation, of the same generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from basalt.errors import InputError
from basalt_spark.data_loss import DataLoss
from basalt_spark.offset import Offset
from basalt_spark.topic_name import TopicName

if TYPE_CHECKING:  # a client is a large import, and most processes of Spark that come here use none
    from basalt.client import Client


def refuse_foreign(offset: Offset, topics: tuple[TopicName, ...], instance: str) -> None:
    """`InputError` where the offset is of other topics, or of another server's store."""
    if set(offset.topics) != set(topics):
        raise InputError(
            f"the checkpoint is of topics {', '.join(sorted(map(str, offset.topics)))}, and the query reads"
            f" {', '.join(map(str, topics))}: give each set of topics a checkpoint of its own",
            field="topics",
        )
    refuse_other_installation(offset, instance, "the checkpoint", "server")


def refuse_other_installation(offset: Offset, instance: str, what: str, field: str) -> None:
    """`InputError` where the offset is of another server's store. `what` says where it was given."""
    if offset.instance != instance:
        raise InputError(
            f"{what} is of installation {offset.instance}, and the server is of installation {instance}:"
            " their ids have nothing to do with each other; check option server, or give a new one",
            field=field,
        )


def refuse_other_generations(client: Client, offset: Offset, loss: DataLoss) -> None:
    """What `loss` says where a topic is not the one any more that was read; `TopicNotFoundError` where there is none."""
    for name, reached in offset.topics.items():
        present = client.topic(name.topic, namespace=name.namespace).stable_end().generation
        if present != reached.generation:
            loss.other_generation(name, reached.generation, present)


def instance_of(client: Client) -> str:
    """The installation that the server serves."""
    return str(client.admin.store().instance)
