"""Looking after transactions over HTTP: lists, descriptions, what hangs, ends by hand, timelines, the audit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from basalt.messaging.read.log_reader import LogReader
from basalt.operations import inspection

ADMIN = "/v1/admin/transactions"
ORDERS = "/v1/namespaces/shop/topics/orders"


def begin(client, **given: Any) -> dict[str, Any]:
    reply = client.call("POST", "/v1/transactions", {"snapshot": False, **given})
    assert reply.status == 200, reply.body
    return reply.json()


def publish(client, begun: dict[str, Any] | None, *messages: str, call: str = "publish") -> None:
    body = {"messages": list(messages), "transactionWritePointer": begun and begun["writePointer"]}
    assert client.call("POST", f"{ORDERS}/{call}", body).status == 200


def describe(client, begun: dict[str, Any]) -> dict[str, Any]:
    reply = client.call("GET", f"{ADMIN}/{begun['id']}")
    assert reply.status == 200, reply.body
    return reply.json()


def events(client, begun: dict[str, Any]) -> list[str]:
    reply = client.call("GET", f"/v1/transactions/{begun['id']}/timeline")
    assert reply.status == 200, reply.body
    return [step["event"] for step in reply.json()["steps"]]


def stored(client, begun: dict[str, Any], name: str) -> None:
    body = {"messages": ["a"], "transactionWritePointer": begun["writePointer"]}
    assert client.call("POST", f"{client.topic(name)}/store", body).status == 200


def audit(client) -> list[dict[str, Any]]:
    return client.call("GET", "/v1/admin/audit").json()


# Lists.


def test_transactions_are_listed_oldest_first_with_filters(client):
    client.topic()
    etl = begin(client, owner="etl")
    client.clock.advance(100)
    web = begin(client, owner="web", kind="long")
    publish(client, web, "a")

    def ids(query: str = "") -> list[str]:
        found = client.call("GET", ADMIN + query).json()
        assert found["open"] == 2
        return [each["id"] for each in found["transactions"]]

    assert ids() == [etl["id"], web["id"]]
    assert ids("?owner=web") == [web["id"]]
    assert ids("?owner=nobody") == []
    assert ids("?principal=anonymous") == [etl["id"], web["id"]]
    assert ids("?principal=token:etl") == []
    assert ids("?olderThanMs=99") == [etl["id"]]
    assert ids("?olderThanMs=100") == []
    assert ids("?topic=shop:orders") == [web["id"]]
    assert ids("?state=open") == [etl["id"], web["id"]]
    assert ids("?state=aborting") == []
    listed = client.call("GET", ADMIN).json()["transactions"]
    assert [each["holdsReaders"] for each in listed] == [False, True]
    assert listed[0]["ageMs"] == 100
    assert listed[0]["remainingMs"] == 30_000 - 100


def test_a_list_is_read_a_page_at_a_time_and_each_is_on_one_page(client):
    begun = [begin(client, owner="etl" if number % 3 else "web")["id"] for number in range(7)]
    pages, after = [], ""
    while True:
        page = client.call("GET", f"{ADMIN}?owner=etl&limit=2{after}").json()
        pages.append([each["id"] for each in page["transactions"]])
        assert page["open"] == 7
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert pages == [[begun[1], begun[2]], [begun[4], begun[5]]], "no page is empty for having nothing behind it"
    assert client.call("GET", f"{ADMIN}?limit=7").json()["next"] is None
    client.call("POST", f"/v1/transactions/{begun[3]}/abort")
    assert [each["id"] for each in client.call("GET", f"{ADMIN}?after={begun[3]}").json()["transactions"]] == begun[4:]


def test_the_invalid_list_is_read_a_page_at_a_time_with_what_is_remembered_of_each(client):
    client.topic()
    assert client.call("GET", f"{ADMIN}/invalid").json() == {"invalid": 0, "writers": [], "next": None}
    begun = [begin(client, owner=f"o{number}", externalWrites=True) for number in range(5)]
    publish(client, begun[0], "a")
    second = client.call("POST", f"/v1/transactions/{begun[0]['id']}/checkpoint", {"snapshot": False}).json()
    for each in begun:
        assert client.call("POST", f"{ADMIN}/{each['id']}/invalidate").status == 200
    first = client.call("GET", f"{ADMIN}/invalid?limit=3").json()
    assert (first["invalid"], len(first["writers"]), first["next"]) == (6, 3, first["writers"][-1]["writePointer"])
    rest = client.call("GET", f"{ADMIN}/invalid?limit=3&after={first['next']}").json()
    assert rest["next"] is None
    found = [*first["writers"], *rest["writers"]]
    assert {each["writePointer"] for each in found} == {
        second["writePointer"],
        *(each["writePointer"] for each in begun),
    }
    assert [each["writePointer"] for each in found] == sorted(each["writePointer"] for each in found)
    whole = client.call("GET", f"{ADMIN}/invalid").json()["writers"]
    own = next(each for each in whole if each["writePointer"] == second["writePointer"])
    assert (own["transaction"], own["owner"], own["principal"]) == (begun[0]["id"], "o0", "anonymous")
    assert [each["topic"] for each in own["topics"]] == ["orders"]
    assert client.call("GET", f"{ADMIN}/invalid?after=x").status == 400


def test_a_list_of_what_hangs_has_a_limit_and_counts_the_rest(client):
    for _ in range(5):
        begin(client)
    client.clock.advance(20_000)
    found = client.call("GET", f"{ADMIN}/hanging?limit=2").json()
    assert (len(found["hanging"]), found["found"], found["leftOut"]) == (2, 5, 0)


def test_who_asks_again_and_again_has_fewer_rows_read_and_still_finds_each(client):
    client.topic()
    for owner in ("a", "b", "c"):
        publish(client, begin(client, owner=owner), "early")
        for number in range(30):  # a row each
            publish(client, None, str(number))
    found = client.call("GET", f"{ADMIN}/hanging?rows=100").json()
    whole = client.call("GET", f"{ADMIN}/hanging").json()
    for answer, exact in ((found, False), (whole, True)):
        assert [each["owner"] for each in answer["hanging"]] == ["a", "b", "c"]
        assert {each["blocks"][0]["exact"] for each in answer["hanging"]} == {exact}
    assert found["hanging"][0]["blocks"][0]["messages"] < whole["hanging"][0]["blocks"][0]["messages"] == 92
    assert inspection.SHARES == 10


@pytest.mark.parametrize("query", ["after=x", "after=0", "limit=0", "limit=10001"])
def test_a_place_in_the_list_that_makes_no_sense_is_refused_by_name(client, query):
    reply = client.call("GET", f"{ADMIN}?{query}")
    assert (reply.status, reply.json()["field"]) == (400, query.split("=")[0])


@pytest.mark.parametrize(
    "query",
    ["state=gone", "owner=a%0Ab", "olderThanMs=-1", "olderThanMs=x", "topic=orders", "topic=a:b:c", "topic=", "x=1"],
)
def test_filters_that_make_no_sense_are_refused_by_name(client, query):
    for path in (ADMIN, f"{ADMIN}/hanging"):
        reply = client.call("GET", f"{path}?{query}")
        assert (reply.status, reply.json()["field"]) == (400, query.split("=")[0])


# One of them.


def test_a_description_tells_what_is_behind_a_row_that_holds_readers_back(client):
    client.topic()
    publish(client, None, "before")
    begun = begin(client, owner="etl")
    publish(client, begun, "early")
    publish(client, None, "b1", "b2")
    shown = describe(client, begun)
    (block,) = shown["blocks"]
    assert (block["namespace"], block["topic"], block["messages"], block["exact"]) == ("shop", "orders", 2, True)
    assert block["at"] == client.call("GET", f"{ORDERS}/holder").json()["at"]
    assert shown["heldBack"]["pruning"]
    assert shown["heldBack"]["visibility"]
    assert "commit or abort" in shown["waitsFor"]
    assert "rolled back" in shown["atDeadline"]
    assert f"basalt tx abort {begun['id']}" in shown["nextStep"]


def test_a_description_tells_what_waits_for_the_commit(client):
    client.topic()
    begun = begin(client)
    publish(client, begun, "a", "bcd", call="store")
    shown = describe(client, begun)
    assert shown["blocks"] == []
    assert shown["topics"] == [
        {"namespace": "shop", "topic": "orders", "generation": 1, "storedMessages": 2, "storedBytes": 4}
    ]


def test_a_description_names_the_conflict_that_was_lost(client):
    loser, winner = begin(client), begin(client, owner="billing")
    change = {"changes": ["b3JkZXJz"]}
    assert client.call("POST", f"/v1/transactions/{winner['id']}/changes", change).status == 200
    assert client.call("POST", f"/v1/transactions/{winner['id']}/commit").status == 200
    assert describe(client, loser)["heldBack"]["changeSets"] == 1
    assert client.call("POST", f"/v1/transactions/{loser['id']}/changes", change).code == "transaction_conflict"
    shown = describe(client, loser)
    assert shown["lostTo"] == {"winner": winner["id"], "winnerOwner": "billing", "key": "orders"}
    assert shown["doomed"]
    assert events(client, loser) == ["begun", "changes_told", "conflict_lost"]


def test_a_description_of_an_ended_one_tells_how_it_ended(client):
    begun = begin(client, owner="etl", externalWrites=True)
    client.clock.advance(31_000)
    client.run(client.services.transactions.expire())
    shown = describe(client, begun)
    assert (shown["state"], shown["timedOut"], shown["externalWrites"], shown["invalidPointers"]) == (
        "INVALID", True, True, 1,
    )  # fmt: skip
    assert shown["endedMs"] == client.clock.now_ms()
    assert "prune explain" in shown["nextStep"]
    client.run(client.services.transactions.prune([begun["writePointer"]]))
    assert describe(client, begun)["nextStep"] == "nothing: it is pruned"
    assert events(client, begun) == ["begun", "invalidated", "pruned"]


@pytest.mark.parametrize("path", [f"{ADMIN}/17", "/v1/transactions/17/timeline"])
def test_an_unknown_transaction_is_not_found(client, path):
    assert client.call("GET", path).code == "transaction_not_found"


@pytest.mark.parametrize("path", [f"{ADMIN}/x", "/v1/transactions/x/timeline", f"{ADMIN}/x/abort"])
def test_what_is_no_id_is_refused(client, path):
    assert client.call("POST" if path.endswith("abort") else "GET", path).status == 400


# What hangs.


def test_what_hangs_is_found_worst_first(client):
    client.topic()
    old = begin(client, owner="old")
    client.clock.advance(16_000)
    blocking = begin(client, owner="blocking")
    publish(client, blocking, "early")
    publish(client, None, "b")
    begin(client, owner="fine")
    found = client.call("GET", f"{ADMIN}/hanging").json()
    assert (found["open"], found["leftOut"]) == (3, 0)
    assert [(each["id"], each["reasons"]) for each in found["hanging"]] == [
        (blocking["id"], ["holds readers back"]),
        (old["id"], ["past half of its time-out"]),
    ]
    assert found["hanging"][0]["blocks"][0]["messages"] == 1
    found = client.call("GET", f"{ADMIN}/hanging?olderThanMs=16000").json()
    assert [each["owner"] for each in found["hanging"]] == ["blocking"]
    found = client.call("GET", f"{ADMIN}/hanging?olderThanMs=15999").json()
    assert [each["owner"] for each in found["hanging"]] == ["blocking", "old"]
    found = client.call("GET", f"{ADMIN}/hanging?owner=old").json()
    assert [each["owner"] for each in found["hanging"]] == ["old"]


def test_what_is_left_out_is_counted_of_what_the_filters_let_through(client, monkeypatch):
    monkeypatch.setattr(inspection, "SEARCHED_MAX", 2)
    for number in range(5):
        begin(client, owner="many" if number < 3 else "few")
    client.clock.advance(16_000)

    def hanging(query: str = "") -> tuple[list[str], int]:
        found = client.call("GET", f"{ADMIN}/hanging{query}").json()
        assert found["open"] == 5
        return [each["owner"] for each in found["hanging"]], found["leftOut"]

    assert hanging() == (["many", "many"], 3)
    assert hanging("?owner=many") == (["many", "many"], 1)
    assert hanging("?owner=few") == (["few", "few"], 0)
    assert hanging("?owner=nobody") == ([], 0)


def test_a_call_about_what_hangs_reads_so_many_rows_and_no_more(client, monkeypatch):
    client.topic()
    blocking = [begin(client, owner=str(number)) for number in range(4)]
    for each in blocking:
        publish(client, each, "early")
    read = 0
    read_page = LogReader.page

    async def counted(*given):
        nonlocal read
        page = await read_page(*given)
        read += len(page.rows)
        return page

    monkeypatch.setattr(LogReader, "page", counted)
    whole = client.call("GET", f"{ADMIN}/hanging").json()
    assert (len(whole["hanging"]), whole["leftOut"]) == (4, 0)
    assert all(each["blocks"][0]["exact"] for each in whole["hanging"])
    rows_of_all, read = read, 0
    monkeypatch.setattr(inspection, "CALL_ROWS_MAX", 2)
    found = client.call("GET", f"{ADMIN}/hanging").json()
    assert ([each["owner"] for each in found["hanging"]], found["leftOut"]) == (["0"], 3)
    assert not found["hanging"][0]["blocks"][0]["exact"], "its row was found, and nothing is left for a count"
    assert read < rows_of_all
    (block,) = describe(client, blocking[0])["blocks"]
    assert (block["messages"], block["exact"]) == (0, False), "a description is bounded as well"


# Ends by hand.


def test_an_abort_by_hand_leaves_a_line_a_step_and_a_count(client):
    client.topic()
    begun = begin(client, owner="etl")
    publish(client, begun, "early")
    reply = client.call("POST", f"{ADMIN}/{begun['id']}/abort?reason=client+is+gone&as=alice", user_agent="curl/8")
    assert reply.json() == {
        "id": begun["id"], "was": "OPEN", "state": "ABORTED", "changed": True, "dryRun": False, "owner": "etl",
        "topics": [{"namespace": "shop", "topic": "orders", "generation": 1}], "tables": [],
    }  # fmt: skip
    (line,) = audit(client)
    assert (line["act"], line["what"], line["outcome"]) == ("forced abort", f"transaction {begun['id']}", "ABORTED")
    assert (line["reason"], line["name"], line["address"], line["agent"]) == (
        "client is gone", "alice", "192.0.2.7", "curl/8",
    )  # fmt: skip
    assert line["requestId"] == reply.header("basalt-request-id")
    steps = client.call("GET", f"/v1/transactions/{begun['id']}/timeline").json()["steps"]
    (forced,) = [step for step in steps if step["event"] == "forced_abort"]
    assert forced["detail"] == {"by": "alice", "address": "192.0.2.7", "reason": "client is gone", "outcome": "ABORTED"}
    assert 'basalt_transactions_total{event="forced"} 1.0' in client.call("GET", "/metrics").body.decode()
    again = client.call("POST", f"{ADMIN}/{begun['id']}/abort").json()
    assert (again["was"], again["changed"]) == ("ABORTED", False)


def test_an_abort_that_would_promise_too_much_is_refused_and_invalidate_is_not(client):
    begun = begin(client, owner="etl", externalWrites=True)
    for query in ("", "?dryRun=true"):
        reply = client.call("POST", f"{ADMIN}/{begun['id']}/abort{query}")
        assert (reply.status, reply.code) == (409, "external_writes")
        assert f"basalt tx invalidate {begun['id']}" in reply.json()["hint"]
    assert describe(client, begun)["state"] == "OPEN"
    assert [line["outcome"].split(":")[0] for line in audit(client)] == ["refused"], "a dry run leaves no line"
    done = client.call("POST", f"{ADMIN}/{begun['id']}/invalidate?reason=gone").json()
    assert (done["state"], done["changed"]) == ("INVALID", True)
    late = client.call("POST", f"{ADMIN}/{begun['id']}/abort")
    assert late.code == "external_writes", "taking it off the invalid list would show its writes"
    assert client.call("POST", f"{ADMIN}/{begun['id']}/abort?dryRun=true").code == "external_writes"
    forced = client.call("POST", f"{ADMIN}/{begun['id']}/abort?force=true").json()
    assert (forced["was"], forced["state"]) == ("INVALID", "ABORTED")


@pytest.mark.parametrize("end", ["expire", "invalidate"])
@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_what_becomes_invalid_while_an_abort_is_decided_stays_invalid(client, end, query):
    """Whether the end is found when the abort comes, or between its look and its stage."""
    refused = set()
    transactions = client.services.transactions
    for turns in range(40):
        begun = begin(client, externalWrites=True)
        key = int(begun["writePointer"])
        client.clock.advance(31_000)

        async def race(turns: int, key: int, path: str) -> Any:
            ends = transactions.expire() if end == "expire" else transactions.invalidate(key)
            abort = asyncio.ensure_future(client.ask("POST", path))
            for _ in range(turns):
                await asyncio.sleep(0)
            await ends
            return await abort

        reply = client.run(race(turns, key, f"{ADMIN}/{begun['id']}/abort{query}"))
        assert reply.status == 409
        refused.add(reply.code)
        assert key in transactions.state.invalid, f"after {turns} turns"
    assert refused <= {"external_writes", "conflict"}


def test_one_that_becomes_invalid_between_the_look_and_the_stage_is_to_be_looked_at_again(client, monkeypatch):
    begun = begin(client, externalWrites=True)
    transactions = client.services.transactions
    abort = transactions.abort

    async def overtaken(*given):
        ended = asyncio.ensure_future(transactions.invalidate(begun["writePointer"]))
        await asyncio.sleep(0)  # its stage is queued first
        try:
            return await abort(*given)
        finally:
            await ended

    monkeypatch.setattr(transactions, "abort", overtaken)
    reply = client.call("POST", f"{ADMIN}/{begun['id']}/abort")
    assert (reply.status, reply.code) == (409, "conflict")
    assert f"basalt tx describe {begun['id']}" in reply.json()["hint"]
    assert begun["writePointer"] in transactions.state.invalid
    assert client.call("POST", f"{ADMIN}/{begun['id']}/abort").code == "external_writes"


def test_the_note_about_an_end_that_is_being_written_is_waited_for(client, monkeypatch):
    begun = begin(client, externalWrites=True)
    transactions, store = client.services.transactions, client.services.store
    writing, go_on = threading.Event(), threading.Event()
    write = store.write

    def slow_write(writes):
        if not writing.is_set():
            writing.set()
            assert go_on.wait(60)
        write(writes)

    monkeypatch.setattr(store, "remote", True)  # the group is written on a thread
    monkeypatch.setattr(store, "write", slow_write)

    async def race() -> Any:
        ends = asyncio.ensure_future(transactions.invalidate(begun["writePointer"]))
        while not writing.is_set():
            await asyncio.sleep(0)
        abort = asyncio.ensure_future(client.ask("POST", f"{ADMIN}/{begun['id']}/abort"))
        await asyncio.sleep(0.1)  # long enough for an abort that does not wait to read that there is no note
        go_on.set()
        await ends
        return await abort

    assert client.run(race()).code == "external_writes"
    assert begun["writePointer"] in transactions.state.invalid


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
def test_a_long_one_that_is_invalid_stays_so_whoever_aborts_it(client, query):
    begun = begin(client, kind="long", externalWrites=True)
    assert client.call("POST", f"{ADMIN}/{begun['id']}/invalidate").json()["state"] == "INVALID"
    done = client.call("POST", f"{ADMIN}/{begun['id']}/abort{query}").json()
    assert (done["was"], done["state"], done["changed"]) == ("INVALID", "INVALID", False)


def test_a_client_still_aborts_its_own_transaction(client):
    begun = begin(client, externalWrites=True)
    assert client.call("POST", f"/v1/transactions/{begun['id']}/abort").json()["state"] == "ABORTED"
    assert audit(client) == []


def test_an_abort_of_a_long_one_says_that_it_is_invalid(client):
    begun = begin(client, kind="long", externalWrites=True)
    would = client.call("POST", f"{ADMIN}/{begun['id']}/abort?dryRun=true").json()
    assert (would["was"], would["state"], would["changed"], would["dryRun"]) == ("OPEN", "INVALID", True, True)
    assert describe(client, begun)["state"] == "OPEN"
    assert client.call("POST", f"{ADMIN}/{begun['id']}/abort").json()["state"] == "INVALID"


def test_what_is_committed_is_not_ended_by_hand(client):
    begun = begin(client)
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    for verb in ("abort", "invalidate"):
        assert client.call("POST", f"{ADMIN}/{begun['id']}/{verb}").code == "transaction_ended"
        assert client.call("POST", f"{ADMIN}/{begun['id']}/{verb}?dryRun=true").code == "transaction_ended"
        assert client.call("POST", f"{ADMIN}/17/{verb}").code == "transaction_not_found"


@pytest.mark.parametrize("query", ["reason=" + "x" * 501, "as=a%0Ab", "force=yes", "dryRun=1", "why=x"])
def test_parameters_of_an_act_are_checked(client, query):
    begun = begin(client)
    reply = client.call("POST", f"{ADMIN}/{begun['id']}/abort?{query}")
    assert (reply.status, reply.json()["field"]) == (400, query.split("=")[0])
    assert describe(client, begun)["state"] == "OPEN"


def test_pruning_by_hand_leaves_a_line_and_a_dry_run_does_not(client):
    client.call("POST", "/v1/admin/prune/run?dryRun=true")
    client.call("POST", "/v1/admin/prune/restore?dryRun=true", {"sinceMs": 0})
    assert audit(client) == []
    assert client.call("POST", "/v1/admin/prune/run?reason=full&as=bob").status == 200
    assert client.call("POST", "/v1/admin/prune/restore", {"sinceMs": 0}).status == 200
    assert [(line["act"], line["outcome"]) for line in audit(client)] == [
        ("restore", "0 writers invalid again"),
        ("prune", "0 writers forgotten"),
    ]
    assert len(client.call("GET", "/v1/admin/audit?limit=1").json()) == 1
    assert client.call("GET", "/v1/admin/audit?limit=0").json()["field"] == "limit"


# Timelines and figures.


def test_a_timeline_has_every_step_and_says_that_it_is_whole(client):
    client.topic()
    begun = begin(client, owner="etl")
    client.clock.advance(5)
    publish(client, begun, "a", call="store")
    client.clock.advance(5)
    client.call("POST", f"/v1/transactions/{begun['id']}/checkpoint")
    client.clock.advance(5)
    client.call("POST", f"/v1/transactions/{begun['id']}/commit")
    shown = client.call("GET", f"/v1/transactions/{begun['id']}/timeline").json()
    start_ms = shown["steps"][0]["atMs"]
    assert [(step["event"], step["atMs"] - start_ms) for step in shown["steps"]] == [
        ("begun", 0), ("topic_joined", 5), ("checkpoint", 10), ("committed", 15),
    ]  # fmt: skip
    assert shown["whole"]
    assert shown["sinceMs"] == start_ms


def test_the_figures_tell_what_is_open_old_and_in_the_way(client):
    client.topic()
    begun = begin(client)
    client.clock.advance(2_000)
    blocking = begin(client)
    publish(client, blocking, "early")
    client.clock.advance(1_000)
    lines = client.call("GET", "/metrics").body.decode().splitlines()
    assert 'basalt_transactions_live{state="open"} 2.0' in lines
    assert "basalt_transactions_oldest_seconds 3.0" in lines
    assert "basalt_transactions_oldest_blocking_seconds 1.0" in lines
    client.clock.advance(40_000)
    client.run(client.services.transactions.expire())
    commit = begin(client)
    client.call("POST", f"/v1/transactions/{commit['id']}/commit")
    lines = client.call("GET", "/metrics").body.decode().splitlines()
    assert 'basalt_transactions_total{event="timed_out"} 2.0' in lines
    assert 'basalt_transactions_total{event="aborted"} 2.0' in lines
    assert "basalt_transaction_commit_seconds_count 1.0" in lines
    assert "basalt_transactions_oldest_seconds 0.0" in lines
    assert describe(client, begun)["timedOut"]


def test_deleting_a_session_leaves_a_line(client):
    client.call("POST", "/v1/transactions/sessions/billing", {"run": "a"})
    assert client.call("DELETE", "/v1/transactions/sessions/billing?as=alice&reason=gone").status == 200
    (line,) = audit(client)
    assert (line["act"], line["what"], line["name"], line["outcome"]) == (
        "delete session", "session billing", "alice", "done",
    )  # fmt: skip
    assert client.call("DELETE", "/v1/transactions/sessions/billing").code == "session_not_found"
    assert audit(client)[0]["outcome"].startswith("refused: ")


def test_a_refused_call_is_counted_by_its_code(client):
    client.call("GET", f"{ADMIN}/17")
    assert (
        'basalt_http_problems_total{code="transaction_not_found"} 1.0' in client.call("GET", "/metrics").body.decode()
    )


def test_a_list_has_every_transaction_whatever_the_size_of_a_slice(client, monkeypatch):
    monkeypatch.setattr(inspection, "SLICE_TRANSACTIONS", 2)
    begun = [client.begin()["id"] for _ in range(5)]
    assert [each["id"] for each in client.call("GET", ADMIN).json()["transactions"]] == begun


def test_write_pointers_beyond_the_limit_are_counted(client, monkeypatch):
    monkeypatch.setattr(inspection, "WRITE_POINTERS_SHOWN_MAX", 2)
    begun = client.begin()
    for _ in range(2):
        client.call("POST", f"/v1/transactions/{begun['id']}/checkpoint")
    found = describe(client, begun)
    assert (len(found["writePointers"]), found["writePointersLeftOut"]) == (2, 1)


def test_what_is_stored_is_not_looked_up_in_more_places_than_the_limit(client, monkeypatch):
    begun = client.begin()
    monkeypatch.setattr(inspection, "STORED_LOOKUPS_MAX", 2)
    for name in ("a", "b"):
        stored(client, begun, name)
    assert [topic["storedMessages"] for topic in describe(client, begun)["topics"]] == [1, 1]
    stored(client, begun, "c")
    assert [topic.get("storedMessages") for topic in describe(client, begun)["topics"]] == [None, None, None]


def test_a_timeline_has_the_newest_acts_of_operators(client, monkeypatch):
    monkeypatch.setattr(inspection, "AUDIT_LINES_MAX", 2)
    begun = client.begin()
    for reason in ("first", "second", "third"):
        assert client.call("POST", f"{ADMIN}/{begun['id']}/abort?reason={reason}").status == 200
    steps = client.call("GET", f"/v1/transactions/{begun['id']}/timeline").json()["steps"]
    acts = [step["detail"]["reason"] for step in steps if step["event"] == "forced_abort"]
    assert acts == ["second", "third"]
