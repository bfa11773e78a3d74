"""What operators see of a store on HBase, for tests of the console: files that hold failed writers back, a region without a report, and
writers that were pruned. The regions are on paper; the rest is made by calls of the API.
"""

from __future__ import annotations

from basalt_engine.clock import ManualClock
from tests.control.pruning.conftest import LIFETIME_MS, SKEW_MS, PaperCluster, file, region
from tests.operator_data import LONG_NAME, MARKUP, SHOP, TURNED, Ask

RETURNS = f"{SHOP}/topics/returns"
OUTLIVED_MS = LIFETIME_MS + SKEW_MS + 1_000  # behind which no writer's lifetime goes on


def fill_regions(ask: Ask, cluster: PaperCluster, clock: ManualClock) -> None:
    """Make all of it, before anything else: time passes, which ends transactions that are open."""
    ask("PUT", RETURNS)
    _failed(ask)
    clock.advance(OUTLIVED_MS)
    cluster.report_all(clock.now_ms())
    assert ask("POST", "/v1/admin/prune/run")["pruned"]
    held, old = _failed(ask), _failed(ask)
    clock.advance(OUTLIVED_MS)
    _failed(ask)  # whose lifetime goes on
    cluster.report_all(clock.now_ms())
    cluster.report(clock.now_ms(), file(-1, held, MARKUP), file(held, old, TURNED), file(old, old, LONG_NAME))
    half = b"\x80"  # where a region was split, after its last report
    cluster.listed[-1:] = [region("cell", "c1", stop=half), region("cell", "c2", half, server=MARKUP)]
    ask("POST", "/v1/admin/snapshot/publish")


def _failed(ask: Ask) -> int:
    """A writer on the invalid list, with a row in a topic; its pointer."""
    begun = ask("POST", "/v1/transactions", {"snapshot": False})
    sent = {"transactionWritePointer": begun["writePointer"], "messages": ["lost"]}
    ask("POST", f"{RETURNS}/publish", sent)
    ask("POST", f"/v1/transactions/{begun['id']}/invalidate")
    return int(begun["writePointer"])
