"""The arguments of a fetch of a group's member, and its answer: messages as a claim, or what it waits for."""

from __future__ import annotations

from typing import NamedTuple

from basalt.api.codecs.encoded import Encoding
from basalt.groups.claims import Claim
from basalt.messaging.read.log_reader import Fetch

NOTHING = Fetch([], None, None, 0, 0)
KEYED, STREAM = "keyed", "stream"

# What a fetch waits for, beside `held ID` (a transaction) and `delayed MS`.
NO_MESSAGES = "no_messages"
PAUSED = "paused"
UNACKED = "unacked"
STANDBY = "standby"
CLAIMED = "claimed"
STOPPING = "stopping"
DRAINING = "draining"
PARKED = "parked"
SPANS = "spans"


class FetchAsk(NamedTuple):
    """The arguments of a fetch. `epoch` 0 joins as the only process of the member's name; without a member no lease ends the claim."""

    member: str = ""
    epoch: int = 0
    limit: int | None = None
    bytes_max: int | None = None
    wait_ms: int = 0
    transaction_id: int | None = None
    claim_ms: int | None = None
    encoding: Encoding | None = None
    request_id: str | None = None


class Dealt(NamedTuple):
    """A claim with its messages; or none, and what the fetch waits for."""

    claim: Claim | None
    fetch: Fetch
    waiting_for: str = ""
