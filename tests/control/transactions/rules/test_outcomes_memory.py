"""What the memories of outcomes and requests forget."""

from __future__ import annotations

from basalt.transactions.rules.outcomes import Memory, RequestCall, RequestUse


def request(name: str, at_ms: int, key: int = 1) -> RequestUse:
    return RequestUse(name, RequestCall.BEGIN, key, at_ms)


def test_a_memory_forgets_the_oldest_beyond_its_count():
    memory: Memory[RequestUse] = Memory(2, 1_000)
    for number in range(5):
        memory.put(request(f"r{number}", number))
    assert [entry.id for entry in memory.entries()] == ["r3", "r4"]
    assert memory.get("r2") is None
    assert len(memory) == 2


def test_a_memory_forgets_what_is_too_old_when_something_newer_comes():
    memory: Memory[RequestUse] = Memory(100, 1_000)
    memory.put(request("old", 0))
    memory.put(request("edge", 500))
    memory.put(request("new", 1_500))
    assert [entry.id for entry in memory.entries()] == ["edge", "new"]


def test_a_clock_step_back_makes_a_memory_forget_nothing():
    memory: Memory[RequestUse] = Memory(100, 1_000)
    memory.put(request("before", 1_000_000))
    memory.put(request("after", 5))
    assert len(memory) == 2


def test_an_entry_that_changes_keeps_its_place():
    memory: Memory[RequestUse] = Memory(2, 1_000)
    memory.put(request("a", 1))
    memory.put(request("b", 2))
    memory.put(request("a", 3, key=9))
    assert [(entry.id, entry.transaction_id) for entry in memory.entries()] == [("a", 9), ("b", 1)]
    memory.put(request("c", 4))
    assert [entry.id for entry in memory.entries()] == ["b", "c"]


def test_a_memory_that_is_made_of_entries_goes_on_like_the_one_they_are_from():
    memory: Memory[RequestUse] = Memory(3, 1_000)
    for number in range(5):
        memory.put(request(f"r{number}", number))
    again: Memory[RequestUse] = Memory(3, 1_000, memory.entries())
    memory.put(request("next", 9))
    again.put(request("next", 9))
    assert again.entries() == memory.entries()
