"""What happens where messages that a stream should have read are gone: an error, or a warning and the next ones."""

from __future__ import annotations

import logging

from basalt.errors import GenerationError, InputError
from basalt_spark.topic_name import TopicName

log = logging.getLogger(__name__)

_GO_ON = "start the query with a new checkpoint, or set failOnDataLoss to false to go on with what there is"


class DataLoss:
    """Says what option `failOnDataLoss` asks for."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def other_generation(self, topic: TopicName, known: int, present: int) -> None:
        """The topic was deleted and created again."""
        what = (
            f"topic {topic} is of generation {present} now, and the checkpoint is of generation {known}:"
            " it was deleted and created again, and what was not read before is gone"
        )
        if self._fails:
            raise GenerationError(f"{what}; {_GO_ON}", field="failOnDataLoss")
        log.warning("%s; going on from its start", what)

    def expired(self, topic: TopicName, after: bytes | None) -> None:
        """Messages expired before they were read."""
        where = "the start" if after is None else after.hex()
        what = f"messages of topic {topic} behind {where} have expired before they were read"
        if self._fails:
            raise InputError(f"{what}; {_GO_ON}, and give the topic a longer ttl", field="failOnDataLoss")
        log.warning("%s; going on with the oldest that are left", what)
