"""Leases end by themselves, and belong to one worker at a time."""

from scalable_bo.serving.leases import NOBODY, Leases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_that_is_not_renewed_expires_and_its_point_comes_back_once() -> None:
    clock = Clock()
    leases = Leases(10.0, clock)
    leases.give([1, 2], "one")
    clock.now = 6.0
    assert leases.renew(1, "one")
    clock.now = 12.0
    assert leases.expired() == [2]
    assert leases.expired() == []
    assert list(leases.held()) == [1]
    clock.now = 16.0
    assert leases.expired() == [1]
    assert leases.held() == {}


def test_a_lease_is_renewed_by_its_worker_alone_and_that_of_nobody_by_any() -> None:
    leases = Leases(10.0, Clock())
    leases.give([1], "one")
    leases.give([2], NOBODY)
    assert not leases.renew(1, "another")
    assert leases.renew(2, "another")
    assert not leases.renew(2, "one")
    assert not leases.renew(3, "one")
    assert {id: lease.worker for id, lease in leases.held().items()} == {1: "one", 2: "another"}
