"""Members as load: what they put together of parts that are encoded already is what the encoder makes of the whole."""

from __future__ import annotations

import asyncio

import pytest

from basalt.api.bodies.messages import Work, WorkPublish
from basalt.api.codecs.avro import encode_work
from bench.load import Connection
from bench.members import NOTHING_MADE, Member, Source, outputs
from bench.readers import Reader
from bench.setting_up import NAMESPACE, messages

SOURCE = Source("orders", "billing")


@pytest.mark.parametrize("claim", [None, 1, 1 << 52])
@pytest.mark.parametrize("made", [False, True])
def test_a_work_of_encoded_parts_is_the_whole_work_encoded(claim: int | None, made: bool) -> None:
    async def work() -> bytes:
        member = Member(Reader(), Connection(), SOURCE, "m1")
        member.epoch, member.claim = 7, claim
        return member.work(outputs("bills", 3) if made else NOTHING_MADE)

    whole = Work(
        publish=[WorkPublish(NAMESPACE, "bills", messages(3))] if made else (),
        acknowledge=() if claim is None else (SOURCE.acknowledge(claim, "m1", 7),),
    )
    assert asyncio.run(work()) == encode_work(whole)
