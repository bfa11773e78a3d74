"""The calls of operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from basalt.settings import Origin

ADMIN = "/v1/admin"


def test_namespaces_are_those_with_a_topic(client):
    client.topic(namespace="shop")
    client.topic(namespace="billing")
    client.call("DELETE", client.topic(namespace="gone"))
    assert client.call("GET", f"{ADMIN}/namespaces").json() == ["billing", "shop"]


def test_topics_are_told_with_all_metadata_deleted_ones_too(client):
    client.topic("orders", ttl=60)
    client.call("DELETE", client.topic("old"))
    client.topic("elsewhere", namespace="billing")
    shown = client.call("GET", f"{ADMIN}/topics?deleted=true").json()["topics"]
    assert [(topic["namespace"], topic["name"], topic["generation"], topic["deleted"]) for topic in shown] == [
        ("billing", "elsewhere", 1, False),
        ("shop", "old", 1, True),
        ("shop", "orders", 1, False),
    ]
    assert shown[2]["properties"]["ttl"] == "60"
    assert shown[2]["createdMs"] == client.clock.now_ms()
    shown = client.call("GET", f"{ADMIN}/topics?namespace=billing").json()["topics"]
    assert [topic["name"] for topic in shown] == ["elsewhere"]


def test_a_deleted_topic_is_told_with_its_last_generation(client):
    path = client.topic(ttl=60)
    created_ms = client.clock.now_ms()
    client.clock.advance(5)
    client.call("DELETE", path)
    one = "/v1/admin/namespaces/shop/topics/orders"
    shown = client.call("GET", one).json()
    assert (shown["generation"], shown["deleted"], shown["properties"]["ttl"]) == (1, True, "60")
    assert (shown["createdMs"], shown["updatedMs"]) == (created_ms, created_ms + 5)
    client.topic()
    shown = client.call("GET", one).json()
    assert (shown["generation"], shown["deleted"], shown["properties"]["ttl"]) == (2, False, "604800")
    assert client.call("GET", one.replace("orders", "nothing")).code == "topic_not_found"


@pytest.mark.parametrize("namespace", ["", "a%20b", "n" * 256, ".."])
def test_topics_of_what_is_no_namespace_are_refused(client, namespace):
    reply = client.call("GET", f"{ADMIN}/topics?namespace={namespace}")
    assert (reply.status, reply.json()["field"]) == (400, "namespace")


def test_a_job_is_listed_run_paused_and_resumed_and_has_a_history(client):
    names = [job["name"] for job in client.call("GET", f"{ADMIN}/jobs").json()]
    assert "retention" in names
    ran = client.call("POST", f"{ADMIN}/jobs/retention/run").json()
    assert (ran["act"], ran["run"]["outcome"], ran["dryRun"]) == ("run", "ok", False)
    assert client.call("GET", f"{ADMIN}/jobs/retention/history").json()[0] == ran["run"]
    paused = client.call("POST", f"{ADMIN}/jobs/retention/pause").json()
    assert (paused["paused"], paused["changed"], paused["run"]) == (True, True, None)
    (job,) = [job for job in client.call("GET", f"{ADMIN}/jobs").json() if job["name"] == "retention"]
    assert (job["paused"], job["lastOutcome"], job["nextRunMs"]) == (True, "ok", None)
    assert client.call("GET", f"{ADMIN}/jobs/retention").json() == job
    assert client.call("POST", f"{ADMIN}/jobs/retention/pause").json()["changed"] is False
    assert client.call("POST", f"{ADMIN}/jobs/retention/resume", {}).json()["paused"] is False


def test_acts_on_a_job_are_tried_dry_and_kept_in_the_audit_with_their_reason(client):
    job = f"{ADMIN}/jobs/retention"
    for act, paused in (("run", False), ("pause", True), ("resume", False)):
        planned = client.call("POST", f"{job}/{act}?dryRun=true").json()
        assert (planned["dryRun"], planned["paused"], planned["run"]) == (True, paused, None)
        assert planned == client.call("POST", f"{job}/{act}?dryRun=true").json(), (
            "a plan stays the same while nothing happens"
        )
    assert planned["changed"] is False, "it is not paused"
    assert client.call("GET", f"{job}/history").json() == []
    assert client.call("GET", job).json()["paused"] is False
    assert client.call("GET", f"{ADMIN}/audit").json() == []
    for act in ("pause", "run", "resume"):
        client.call("POST", f"{job}/{act}?reason=disk&as=ada")
    lines = client.call("GET", f"{ADMIN}/audit").json()
    assert [(line["act"], line["what"], line["name"], line["reason"]) for line in lines] == [
        (f"{act} job", "job retention", "ada", "disk") for act in ("resume", "run", "pause")
    ]
    assert [line["outcome"] for line in lines] == ["done", "ok", "done"]


def test_a_run_that_fails_is_told_and_the_audit_says_why(client, monkeypatch):
    async def broken() -> None:
        raise OSError("the disk is gone")

    job = client.services.scheduler._jobs["stats"]
    monkeypatch.setattr(job, "job", replace(job.job, run=broken))
    ran = client.call("POST", f"{ADMIN}/jobs/stats/run").json()["run"]
    assert (ran["outcome"], ran["error"]) == ("failed", "OSError: the disk is gone")
    assert client.call("GET", f"{ADMIN}/audit").json()[0]["outcome"] == ran["error"]


def test_a_server_that_has_its_store_to_itself_says_so(client):
    shown = client.call("GET", f"{ADMIN}/cluster").json()
    assert (shown["shared"], shown["leads"], shown["epoch"], shown["terms"]) == (False, True, 0, 0)
    assert (shown["certificateEndsMs"], shown["startedMs"]) == (None, client.services.started_ms)


def test_a_jobs_history_is_as_long_as_asked(client):
    for _ in range(3):
        client.call("POST", f"{ADMIN}/jobs/stats/run")
    assert len(client.call("GET", f"{ADMIN}/jobs/stats/history?limit=2").json()) == 2
    assert client.call("GET", f"{ADMIN}/jobs/stats/history?limit=0").json()["field"] == "limit"


@pytest.mark.parametrize(
    ("method", "call"),
    [("POST", "run"), ("POST", "run?dryRun=true"), ("POST", "pause"), ("POST", "resume"), ("GET", "history")],
)
def test_a_job_that_is_not_there_is_not_found(client, method, call):
    reply = client.call(method, f"{ADMIN}/jobs/sweep/{call}")
    assert (reply.status, reply.code) == (404, "job_not_found")
    assert client.call("GET", f"{ADMIN}/jobs/sweep").code == "job_not_found"
    assert client.call("GET", f"{ADMIN}/audit").json() == []


def test_settings_are_told_with_their_origin_and_no_secret(connect, settings):
    origins = {"http.body_bytes_max": Origin("flag"), "store.hbase.prefix": Origin("file", secret=True)}
    shown = connect(replace(settings, origins=origins)).call("GET", f"{ADMIN}/settings").json()
    by_key = {setting["key"]: setting for setting in shown}
    assert by_key["http.body_bytes_max"] == {
        "key": "http.body_bytes_max",
        "value": "10MiB",
        "origin": "flag",
        "live": False,
        "meaning": "largest request body, before and after decompression",
        "default": "10MiB",
        "values": "1KiB to 1GiB (bytes)",
    }
    assert by_key["store.kind"]["origin"] == "default"
    assert by_key["store.hbase.prefix"]["value"] != settings.store.hbase.prefix


def test_the_store_is_told_with_its_tables(client):
    client.publish(client.topic(), "x" * 1_000)
    shown = client.call("GET", f"{ADMIN}/store").json()
    assert (shown["kind"], shown["atomic"]) == ("memory", True)
    sizes = {table["name"]: table["bytes"] for table in shown["tables"]}
    assert sizes["message"] >= 1_000
    assert set(sizes) == {"message", "payload", "cell", "metadata", "transaction_log", "system"}


def test_the_snapshot_is_told_by_its_pointers_and_lengths(client):
    begun, given_up = client.begin(), client.begin()
    client.call("POST", f"/v1/transactions/{given_up['id']}/invalidate")
    shown = client.call("GET", f"{ADMIN}/snapshot").json()
    assert (shown["inProgress"], shown["invalid"]) == (1, 1)
    assert (shown["oldestInProgress"], shown["writePointer"]) == (begun["id"], given_up["writePointer"])
    assert shown["oldestBeganMs"] == begun["beganMs"]


def test_a_store_without_a_directory_cannot_be_backed_up(client):
    reply = client.call("POST", f"{ADMIN}/backups", {"name": "first"})
    assert (reply.status, reply.code) == (400, "invalid_input")
    assert client.call("GET", f"{ADMIN}/backups").json() == []


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({}, "malformed_body"),
        ({"name": 5}, "malformed_body"),
        ({"name": "a", "path": "b"}, "malformed_body"),
        ([], "malformed_body"),
    ]
    + [({"name": name}, "invalid_name") for name in ("", "..", "a/b", "../a", "a\u0000", "n" * 256, ".a")],
)
def test_a_backup_under_a_bad_name_is_refused(client, asked, code):
    reply = client.call("POST", f"{ADMIN}/backups", asked)
    assert (reply.status, reply.code) == (400, code)
