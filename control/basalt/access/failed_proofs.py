"""Bad credentials by the address that sends them: so many a second are verified, and no more, until some time has passed.

Verifying takes up to a tenth of a millisecond, and guessing takes many tries. A good credential that was verified of late is known, and
passes all the same; one that was not waits with the bad ones of its address.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from basalt.access.quotas import HELD_MS, Bucket
from basalt.errors import ThrottledError

FAILED_PER_S_MAX = (
    16  # of one address: a person mistypes one, a broken program sends some, and 16 are a thousandth of a core
)
ADDRESSES_MAX = 100_000  # that are in memory, some 25 MB; beyond, the longest unseen begins anew
LOOKED_AT = 2  # addresses that are looked at for each new one: those that are quiet go faster than others come
UNNAMED = "local"  # the address of who has none: all clients of a Unix socket together
_NETWORK_BITS = 64  # of an IPv6 address: the least that one customer or one machine is given


class FailedProofs:
    """The bad credentials of each address of late."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()  # the longest unseen first
        self.throttled_total = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def may_verify(self, address: str | None, now_ms: float) -> bool:
        """Tell whether a credential of this address may be verified now."""
        if not self._buckets:
            return True
        bucket = self._buckets.get(network_of(address))
        return bucket is None or not bucket.wait_ms(FAILED_PER_S_MAX, now_ms)

    def failed(self, address: str | None, now_ms: float) -> None:
        """A credential of this address was verified, and is none."""
        network = network_of(address)
        bucket = self._buckets.get(network)
        if bucket is None:
            bucket = self._opened(network, now_ms)
        else:
            self._buckets.move_to_end(network)
        bucket.take(1, FAILED_PER_S_MAX, now_ms)

    def refusal(self, address: str | None, now_ms: float) -> ThrottledError:
        """The error for a credential that is not verified."""
        self.throttled_total += 1
        bucket = self._buckets.get(network_of(address))
        error = ThrottledError(
            f"too many bad credentials came from this address: {FAILED_PER_S_MAX} a second are verified",
            field="Authorization",
            hint="Wait and send it again; find out which program on this address has a wrong one.",
        )
        error.held_ms = HELD_MS
        error.retry_after_ms = 1 if bucket is None else max(1, bucket.wait_ms(FAILED_PER_S_MAX, now_ms))
        return error

    def _opened(self, network: str, now_ms: float) -> Bucket:
        buckets = self._buckets
        for _ in range(min(LOOKED_AT, len(buckets))):
            oldest = next(iter(buckets))
            if buckets[oldest].used_milli(FAILED_PER_S_MAX, now_ms):
                buckets.move_to_end(oldest)
            else:
                del buckets[oldest]
        if len(buckets) >= self._addresses_max:
            buckets.popitem(last=False)
        bucket = buckets[network] = Bucket()
        return bucket


def network_of(address: str | None) -> str:
    """The address itself; of IPv6 its network, for whoever has one of its addresses has all of them."""
    if address is None:
        return UNNAMED
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    bits = 128 - _NETWORK_BITS
    return f"{IPv6Address(int(found) >> bits << bits)}/{_NETWORK_BITS}"
