"""How often wrong secrets came from where. Pure. Who knows a right one is let in however many were wrong:
others behind the same address are locked out by nobody.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque

__all__ = ["FailedLogins", "network_of"]

_MOST = 10
_WITHIN_S = 60.0
_MOST_KNOWN = 10_000  # places; the one that failed longest ago is forgotten first


class FailedLogins:
    """After ten wrong ones within a minute a place waits until the first of them is a minute old."""

    def __init__(self) -> None:
        self._times_s: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str, now_s: float) -> float:
        """A wrong secret came from an address; the seconds that it must wait, 0 = none."""
        place = network_of(address)
        times_s = self._times_s.pop(place, None) or deque(maxlen=_MOST)
        wait_s = times_s[0] + _WITHIN_S - now_s if len(times_s) == _MOST else 0.0
        if wait_s <= 0.0:
            times_s.append(now_s)
        self._times_s[place] = times_s
        if len(self._times_s) > _MOST_KNOWN:
            self._times_s.popitem(last=False)
        return max(0.0, wait_s)

    def __len__(self) -> int:
        return len(self._times_s)


def network_of(address: str) -> str:
    """What one machine may change as it likes counts as one: of IPv6 the first half."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
