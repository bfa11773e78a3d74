"""Transaction ids of 128 bits: which installation, which write pointer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basalt.errors import CorruptionError, InputError, TransactionNotFoundError
from basalt.transactions.rules.transaction import TransactionIds

HERE, THERE = TransactionIds("00000000000000ff"), TransactionIds("0123456789abcdef")
POINTER = 1_700_000_000_000_000_000


def test_an_id_is_the_installation_and_the_write_pointer():
    assert HERE.text(POINTER) == "00000000000000ff17979cfe362a0000"


@given(st.integers(1, 2**63 - 1))
def test_an_id_reads_back_and_so_does_a_write_pointer_in_decimal(pointer):
    assert HERE.parse(HERE.text(pointer), "id") == HERE.parse(str(pointer), "id") == pointer
    assert len(HERE.text(pointer)) == 32


@given(st.lists(st.integers(1, 2**63 - 1), min_size=2))
def test_ids_sort_as_their_write_pointers(pointers):
    assert sorted(map(HERE.text, pointers)) == [HERE.text(pointer) for pointer in sorted(pointers)]


def test_an_id_of_another_installation_is_told_as_such():
    with pytest.raises(
        TransactionNotFoundError, match=r"belongs to another installation: .*0123456789abcdef.*00000000000000ff"
    ):
        HERE.parse(THERE.text(POINTER), "id")


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "01", "9223372036854775808", "1e3", "00000000000000ff" + "0" * 16, "00000000000000ffffffffffffffffff",
     "00000000000000FF17979CFE362A0000", "00000000000000ff17979cfe362a000", "0x17979cfe362a0000", "x" * 32, "\uff11\uff17"],
)  # fmt: skip
def test_what_is_no_id_is_refused(text):
    with pytest.raises(InputError, match="is not a transaction id") as refused:
        HERE.parse(text, "transaction")
    assert refused.value.field == "transaction"
    assert not isinstance(refused.value, TransactionNotFoundError)


@pytest.mark.parametrize("instance", ["", "ff", "00000000000000FF", "00000000000000f/"])
def test_facts_without_a_usable_instance_are_refused(instance):
    with pytest.raises(CorruptionError, match="16 hex digits"):
        TransactionIds(instance)
