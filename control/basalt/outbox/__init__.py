"""A transactional outbox over any DB-API 2.0 driver: change SQL tables and announce it in topics, in one decision.

The application writes its messages into a table within its own SQL transaction, whose commit is the decision; a relay
publishes the rows to Basalt exactly once, in order. No two-phase commit, no dependency. Reference: docs/reference/outbox.md.

Bottom up: `tables` is the SQL of its two tables, `outbox` what applications use, `relay` the way from the table to the topics.
"""

from __future__ import annotations

from basalt.outbox.outbox import Outbox, OutboxParticipant
from basalt.outbox.relay import OutboxBehindError, OutboxUncertainError, Relay

__all__ = ["Outbox", "OutboxBehindError", "OutboxParticipant", "OutboxUncertainError", "Relay"]
