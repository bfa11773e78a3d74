"""The look that is taken each second: what it finds in a server at work, and that it costs little where there is a lot."""

from __future__ import annotations

import asyncio

import pytest

from basalt.errors import UnavailableError
from basalt.http import sampler as module
from basalt.http.metrics import TopicSeries
from basalt.http.sampler import (
    GROUP_LOOK_MS,
    GROUPS_LOOKED_AT_MAX,
    RANK_MS,
    TRANSACTIONS_LOOKED_AT_MAX,
    ranked,
)
from basalt.operations.series.series import GROUPS_SHOWN_MAX
from basalt.operations.series.table import FIGURES

TOPIC = "/v1/namespaces/shop/topics/orders"


class Watch:
    """A second hand: each `look` is a second later."""

    def __init__(self, client) -> None:
        self.client = client
        self.sampler = client.app.sampler
        self.series = client.services.series

    def look(self, after_ms: int = 1_000) -> None:
        clock = self.client.clock
        clock.advance(after_ms)
        self.sampler.sample(clock.now_ms(), clock.monotonic_ms())
        self.client.run(self.sampler.look_at_groups(clock.now_ms()))

    def now(self, name: str) -> float | None:
        """The value of the newest second."""
        now_ms = self.client.clock.now_ms()
        (value,) = self.series.read([name], now_ms // 1_000 * 1_000, now_ms + 1, now_ms, None).values[name]
        return None if value != value else value

    def topics(self) -> set[str]:
        return {name.partition(":")[2] for name in self.series.topics.names}


@pytest.fixture
def watch(client) -> Watch:
    watch = Watch(client)
    watch.look()
    return watch


def publish(client, count: int = 1) -> None:
    client.publish(TOPIC, *["x"] * count)


def test_every_figure_but_those_of_a_disk_is_found_on_a_server_at_work(client, watch):
    client.topic("orders")
    publish(client)
    client.poll(TOPIC)
    transaction = client.begin()["id"]
    client.call("POST", f"/v1/transactions/{transaction}/commit", b"")
    watch.look()
    missing = {figure.name for figure in FIGURES if watch.now(figure.name) is None}
    assert missing == {"store_bytes", "disk_free_bytes"}  # of the embedded store alone


def test_rates_and_latencies_are_those_of_the_second(client, watch):
    client.topic("orders")
    for _ in range(3):
        publish(client, 5)
    watch.look()
    assert [watch.now(name) for name in ("publishes_per_s", "messages_in_per_s", "messages_in_bytes_per_s")] == [
        3,
        15,
        15,
    ]
    assert watch.now("publish_p99_s") > 0
    assert watch.now("fetch_p99_s") is None
    client.poll(TOPIC)
    client.call("POST", f"{TOPIC}/publish", {"messages": 7})  # is refused, and no publish
    watch.look(500)
    assert [watch.now(name) for name in ("publishes_per_s", "fetches_per_s", "messages_out_per_s")] == [0, 2, 30]
    assert watch.now("problems_per_s") == 2


def test_transactions_are_counted_with_their_ages(client, watch):
    client.topic("orders")
    began = [client.begin() for _ in range(3)]
    ids = [each["id"] for each in began]
    assert client.call("POST", f"/v1/transactions/{ids[1]}/abort", b"").status == 200
    assert client.call("POST", f"/v1/transactions/{ids[2]}/invalidate", b"").status == 200
    watch.look(4_000)
    assert {name: watch.now(name) for name in ("open", "oldest_open_s", "oldest_blocking_s", "invalid", "hanging")} == {
        "open": 1,
        "oldest_open_s": 4,
        "oldest_blocking_s": 0,
        "invalid": 1,
        "hanging": 0,
    }
    assert watch.now("prune_bound_s") == pytest.approx(4, abs=0.01)
    assert (watch.now("begun_per_s"), watch.now("aborts_per_s")) == (0.75, 0.25)
    client.publish(TOPIC, "x", pointer=began[0]["writePointer"])
    watch.look()
    assert (watch.now("oldest_blocking_s"), watch.now("hanging")) == (5, 1)


def test_of_many_open_transactions_the_oldest_are_looked_at(client, watch, monkeypatch):
    looked: list[int] = []
    surely = client.services.first_unstable.surely
    monkeypatch.setattr(client.services.first_unstable, "surely", lambda each: looked.append(each.id) or surely(each))
    for _ in range(TRANSACTIONS_LOOKED_AT_MAX + 10):
        client.begin()
    client.clock.advance(1_000)
    client.app.sampler.sample(client.clock.now_ms(), client.clock.monotonic_ms())
    assert (len(looked), looked) == (TRANSACTIONS_LOOKED_AT_MAX, sorted(looked))
    assert watch.series.rings[0].read("open", watch.series.rings[0].newest, watch.series.rings[0].newest)[0] == (
        TRANSACTIONS_LOOKED_AT_MAX + 10
    )


def make_group(client, name: str) -> None:
    assert client.call("PUT", f"{TOPIC}/groups/{name}", {}).status in (200, 201)


def test_the_lag_of_a_group_is_followed_and_its_age_grows_between_two_counts(client, watch, monkeypatch):
    client.topic("orders")
    make_group(client, "billing")
    publish(client, 3)
    watch.look(2_000)
    name = "shop:orders/billing"
    assert (watch.now(f"lag_messages:{name}"), watch.now(f"lag_seconds:{name}")) == (3, 2)
    counted: list[str] = []
    inspection = client.services.group_inspection
    lag = inspection.lag
    monkeypatch.setattr(inspection, "lag", lambda live: counted.append(live.state.name) or lag(live))
    watch.look()
    assert (watch.now(f"lag_messages:{name}"), watch.now(f"lag_seconds:{name}"), counted) == (3, 3, [])
    assert (watch.now("worst_lag_messages"), watch.now("groups")) == (3, 1)
    publish(client)
    watch.look()
    assert (watch.now(f"lag_messages:{name}"), counted) == (4, ["billing"])
    watch.look(GROUP_LOOK_MS)  # messages may have expired
    assert counted == ["billing"] * 2


def test_a_group_that_goes_on_is_counted_anew_and_one_that_rests_once_a_minute(client, watch, monkeypatch):
    client.topic("orders")
    make_group(client, "billing")
    publish(client, 3)
    watch.look()
    counted: list[str] = []
    inspection = client.services.group_inspection
    lag = inspection.lag
    monkeypatch.setattr(inspection, "lag", lambda live: counted.append(live.state.name) or lag(live))
    assert client.call("POST", f"{TOPIC}/groups/billing/seek", {"to": "end"}).status == 200
    watch.look()
    assert (watch.now("lag_messages:shop:orders/billing"), len(counted)) == (0, 1)
    watch.look(GROUP_LOOK_MS - 1_000)
    assert len(counted) == 1
    watch.look()
    assert len(counted) == 2


def test_a_deleted_group_leaves_at_the_next_look(client, watch):
    client.topic("orders")
    make_group(client, "billing")
    watch.look()
    assert client.call("DELETE", f"{TOPIC}/groups/billing").status in (200, 204)
    watch.look()
    assert watch.series.find("lag_messages:shop:orders/billing") is None


def test_many_groups_are_counted_a_few_at_a_time(client, watch):
    client.topic("orders")
    publish(client)
    groups = [f"g{number:03}" for number in range(GROUPS_LOOKED_AT_MAX * 2 + 5)]
    for name in groups:
        make_group(client, name)
    known = []
    for _ in range(3):
        watch.look()
        known.append(len([each for each in watch.series.known() if each.name.startswith("lag_messages:")]))
    assert known == [GROUPS_LOOKED_AT_MAX, 2 * GROUPS_LOOKED_AT_MAX, len(groups)]


def test_more_groups_than_places_give_them_to_those_that_do_most():
    states = dict.fromkeys(range(GROUPS_SHOWN_MAX + 50))
    first = ranked(set(), states, {})
    assert first == set(range(GROUPS_SHOWN_MAX))
    busy = {GROUPS_SHOWN_MAX + 7: 100, GROUPS_SHOWN_MAX + 8: 1, 0: 60, **dict.fromkeys(range(2, GROUPS_SHOWN_MAX), 2)}
    then = ranked(first, states, busy)
    assert GROUPS_SHOWN_MAX + 7 in then  # for the one that did nothing
    assert 1 not in then
    assert GROUPS_SHOWN_MAX + 8 not in then  # not twice as busy as the quietest that is left
    assert len(then) == GROUPS_SHOWN_MAX


def test_places_are_given_anew_once_a_minute(client, watch, monkeypatch):
    monkeypatch.setattr(module, "GROUPS_SHOWN_MAX", 2)
    calls: list[int] = []
    monkeypatch.setattr(module, "ranked", lambda shown, states, recent: calls.append(1) or set(list(states)[:2]))
    client.topic("orders")
    for number in range(4):
        make_group(client, f"g{number}")
    watch.look()
    watch.look()
    assert len(calls) == 1
    watch.look(RANK_MS)
    assert len(calls) == 2


def test_while_the_manager_reads_its_log_its_figures_are_a_gap_and_the_others_go_on(client, watch, monkeypatch):
    class Reading:
        @property
        def state(self):
            raise UnavailableError("the manager reads its log")

        def __getattr__(self, name):
            return getattr(client.services.transactions, name)

    watch.sampler._services = replace_transactions(client.services, Reading())
    watch.look()
    assert watch.now("open") is None
    assert watch.now("connections") == 0


def replace_transactions(services, transactions):
    """The services with another coordinator, as a value beside them."""

    class Others:
        def __getattr__(self, name):
            return transactions if name == "transactions" else getattr(services, name)

    return Others()


def test_the_rates_of_a_topic_are_followed_from_its_first_message_on(client, watch):
    client.topic("orders")
    client.topic("quiet")
    publish(client, 3)
    watch.look()  # a rate needs two looks
    assert watch.now("published_per_s:shop:orders") is None
    publish(client, 4)
    client.poll(TOPIC)
    watch.look()
    assert watch.now("published_per_s:shop:orders") == 4
    assert watch.now("fetched_per_s:shop:orders") == 7
    watch.look()
    assert watch.now("published_per_s:shop:orders") == 0
    assert watch.series.find("published_per_s:shop:quiet") is None
    client.call("DELETE", TOPIC)
    watch.look()
    assert watch.series.find("published_per_s:shop:orders") is None


def test_no_more_topics_are_followed_than_the_metrics_count_alone_and_a_busy_one_takes_a_place_within_a_minute(
    client, watch
):
    client.app.metrics.topics = topics = TopicSeries(2)
    client.services.topics.memory.meter = topics.published
    for name in ("a", "b", "busy"):
        client.topic(name)
        client.publish(f"/v1/namespaces/shop/topics/{name}", "x")
    watch.look()
    watch.look()
    assert watch.topics() == {"shop:a", "shop:b"}
    for _ in range(5):
        client.publish("/v1/namespaces/shop/topics/busy", "x")
    client.clock.advance(module.RANK_MS)
    watch.look()
    watch.look()
    assert len(watch.topics()) == 2
    assert "shop:busy" in watch.topics()
    assert watch.now("published_per_s:shop:busy") == 0, "what came before it had a place is nobody's"


def test_the_lag_of_the_event_loop_is_the_one_that_is_measured_for_all_who_ask(client, watch):
    lag = client.services.loop_lag
    lag.look(lag._due_ms + 700.0)
    lag.look(lag._due_ms)
    watch.look()
    assert watch.now("loop_lag_s") == pytest.approx(0.7)


def test_it_looks_in_the_middle_of_each_second_and_stops_when_it_is_told(client):
    sampler, looks = client.app.sampler, []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sampler.start()
        first = sampler._timer
        at_ms = client.clock.now_ms() + (first.when() - loop.time()) * 1_000
        looks.append(round(at_ms / 10) % 100)
        sampler.stop()
        assert first.cancelled()

    client.run(main())
    assert looks == [50]


def test_a_look_that_fails_is_told_and_the_next_one_is_taken(client, monkeypatch, caplog):
    def broken(*_args: object) -> None:
        raise ValueError("no such thing")

    async def main() -> None:
        sampler = client.app.sampler
        monkeypatch.setattr(sampler, "sample", broken)
        sampler._tick()
        assert sampler._timer is not None
        sampler.stop()

    client.run(main())
    assert "were not noted" in caplog.text
