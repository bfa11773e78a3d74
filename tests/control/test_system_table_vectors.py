"""Entries of the system table, byte by byte: what is written must be what the vectors say, and read back as that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from basalt.access.quotas import QuotaRow
from basalt.access.records import GrantRow, GrantUse, PolicyVersion, RoleRow, TokenRow, TokenUse
from basalt.cluster.lease import LeaseRecord
from basalt.cluster.members import MemberRecord
from basalt.messaging.index import SavedIndex, TopicIndex
from basalt.messaging.log.garbage_notes import GarbageRange
from basalt.messaging.log.stored_log import LogEnd, LogStart, SavedProducers
from basalt.operations.audit import Line
from basalt.operations.scheduler import Definition, Runs
from basalt.pruning.state import PruneRecord, PruneState
from basalt.retention.expired import Swept
from basalt.transactions.manager import ExternalWriter
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import InstallationFacts, SystemTable
from basalt_engine.table import Put
from tests.vector_lines import cases, lines

DAY_MS = 86_400_000

FORMS: dict[str, type[Any]] = {
    "audit": Line,
    "token": TokenRow,
    "token-used": TokenUse,
    "grant": GrantRow,
    "grant-used": GrantUse,
    "role": RoleRow,
    "quota": QuotaRow,
    "policy": PolicyVersion,
    "install": InstallationFacts,
    "lease": LeaseRecord,
    "member": MemberRecord,
    "job": Definition,
    "job-runs": Runs,
    "hidden": GarbageRange,
    "newest": LogEnd,
    "newest-of-failed": LogEnd,
    "expired": LogStart,
    "swept": Swept,
    "index": SavedIndex,
    "producers": SavedProducers,
    "external_writer": ExternalWriter,
    "prune": PruneState,
    "pruned": PruneRecord,
}


def test_every_kind_has_a_vector():
    assert {meaning["kind"] for _, _, meaning in lines("system-table")} == set(FORMS)


@pytest.mark.parametrize(("data", "meaning"), cases("system-table"))
def test_an_entry_is_written_as_its_vector_says(data: bytes, meaning: dict[str, Any]):
    kind, name = meaning["kind"], meaning["name"]
    body = msgspec.json.encode(msgspec.convert(meaning["body"], FORMS[kind]))
    assert SystemTable.put(kind, name, body) == Put(f"{kind}:{name}".encode(), {b"v": data})


@pytest.mark.parametrize(("data", "meaning"), cases("system-table"))
def test_an_entry_is_read_as_its_vector_says(data: bytes, meaning: dict[str, Any]):
    kind, name = meaning["kind"], meaning["name"]
    table = MemoryStore().table("system")
    table.write([Put(f"{kind}:{name}".encode(), {b"v": data})])
    body = SystemTable(table).get(kind, name)
    assert body is not None
    assert msgspec.json.decode(body) == meaning["body"]
    assert msgspec.json.decode(body, type=FORMS[kind]) == msgspec.convert(meaning["body"], FORMS[kind])


def test_the_name_of_a_note_follows_from_its_body():
    (note,) = [meaning for _, _, meaning in lines("system-table") if meaning["kind"] == "hidden"]
    assert msgspec.convert(note["body"], GarbageRange).name == note["name"]


def test_the_name_of_what_was_pruned_follows_from_its_body():
    entries = [meaning for _, _, meaning in lines("system-table") if meaning["kind"] == "pruned"]
    assert [msgspec.convert(entry["body"], PruneRecord).name for entry in entries] == [
        entry["name"] for entry in entries
    ]


def test_a_saved_index_comes_back_as_it_was():
    for _, _, meaning in lines("system-table"):
        if meaning["kind"] == "index":
            saved = msgspec.convert(meaning["body"], SavedIndex)
            assert TopicIndex.of(saved, DAY_MS).to_save(saved.generation) == saved
