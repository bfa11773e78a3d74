"""Networks: an address is in one of them, however it is written, or in none."""

from __future__ import annotations

import pytest

from basalt.access.networks import Networks

SOME = Networks(["192.0.2.0/24", "2001:db8::/32", "198.51.100.7"])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", True),
        ("::ffff:192.0.2.7", True),
        ("192.0.3.7", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("198.51.100.7", True),
        ("198.51.100.8", False),
        ("", False),
        ("no address", False),
    ],
)
def test_an_address_is_in_a_network_however_it_is_written(address, expected):
    assert (address in SOME) == expected


def test_without_networks_no_address_is_in_one():
    assert not Networks([])
    assert "192.0.2.7" not in Networks([])
    assert SOME


def test_what_is_no_network_is_an_error():
    with pytest.raises(ValueError, match="has host bits set"):
        Networks(["10.0.0.1/8"])
