"""Networks of addresses, for what counts only from some of them: tokens, proxies that are believed in logs, clients of Tephra."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network


class Networks:
    """Some networks, each as `10.0.0.0/8` or an address. `ValueError` for what is none."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks = tuple(map(ip_network, texts))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        """Tell whether the address is in one of them. What is no address is in none; IPv4 within IPv6 counts as what it is."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
        return any((mapped or found) in network for network in self._networks)
