"""Whose turn it is: tenants of one class share the time of the workers by weight.

Deficit round robin (Shreedhar and Varghese, Efficient fair queuing using deficit round robin, 1996), with two
changes. A batch is run whole, so its tenant may go into debt and waits until the others have had as much. And
the rounds are counted, not walked: an account says up to which second, by its weight, its tenant has had its
share, and who has had least is next (start-time fair queueing, Goyal, Vin and Cheng 1996). So one who comes
back is next, with the debt it left, and no credit for the time that it was away: it begins where the last one
began. Between two who wait, what each got by its weight differs by a batch at most.

An account is forgotten some seconds after its tenant was last here; debts are a batch at most. Knows no
queue.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Turns"]

_REMEMBERED_S = 5.0  # by then others have had as much as a debt, a batch, is worth
_LEAST_WEIGHT = 1e-3


@dataclass(slots=True)
class _Account:
    """had_s: seconds of a worker that the tenant had, by its weight. waits: queues that hold rows of it."""

    weight: float
    had_s: float
    seen_s: float
    waits: int = 0


class Turns:
    """The accounts of the tenants of one class."""

    __slots__ = ("_accounts", "_began_s", "_weights")

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}  # the one seen longest ago first
        self._began_s = 0.0  # where who was served last began
        self._weights = 0.0  # of all of them

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def is_shared(self) -> bool:
        """Whether more than one tenant was here of late."""
        return len(self._accounts) > 1

    @property
    def first(self) -> str | None:
        """Of those that were here, the one seen longest ago."""
        return next(iter(self._accounts), None)

    def came(self, now_s: float, tenant: str, weight: float = 1.0) -> None:
        """Rows of it came."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._open(tenant)
        if account.weight != weight:
            weight = max(weight, _LEAST_WEIGHT)
            self._weights += weight - account.weight
            account.weight = weight
        account.seen_s = now_s
        if len(self._accounts) > 1:
            self._forget(now_s)

    def waits(self, tenant: str, queues: int) -> None:
        """So many queues more, or fewer, hold rows of it."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._open(tenant)
        account.waits += queues

    def begins_s(self, tenant: str) -> float:
        """Where it begins if it is served now: the least is next."""
        account = self._accounts.get(tenant)
        return self._began_s if account is None else max(account.had_s, self._began_s)

    def weight(self, tenant: str) -> float:
        """Its weight."""
        account = self._accounts.get(tenant)
        return 1.0 if account is None else account.weight

    def share(self, tenant: str) -> float:
        """The part of all that there is which is its own, beside those who are here."""
        account = self._accounts.get(tenant)
        return 1.0 if account is None else account.weight / self._weights

    def charge(self, rows: dict[str, int], seconds: float) -> None:
        """A batch of these tenants' rows was sent, which takes so long."""
        began_s = min([self.begins_s(tenant) for tenant in rows])
        row_s = seconds / sum(rows.values())
        for tenant, count in rows.items():
            account = self._accounts.get(tenant)
            if account is not None:
                account.had_s = self.begins_s(tenant) + count * row_s / account.weight
        self._began_s = began_s

    def _open(self, tenant: str) -> _Account:
        account = self._accounts[tenant] = _Account(1.0, self._began_s, 0.0)
        self._weights += account.weight
        return account

    def _forget(self, now_s: float) -> None:
        """Of those seen longest ago, the first two that are here no more: so all go in time."""
        for _ in range(2):
            tenant, account = next(iter(self._accounts.items()))
            if now_s - account.seen_s <= _REMEMBERED_S:
                return
            del self._accounts[tenant]
            if account.waits:
                account.seen_s = now_s
                self._accounts[tenant] = account
            else:
                self._weights -= account.weight
