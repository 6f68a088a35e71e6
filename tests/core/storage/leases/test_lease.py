"""Leases: who works on what; what becomes of them when their holder ends, well or not."""

import json
import os

import pytest

from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.storage.leases.lease import held_lease, living_holders
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import Location
from tests.support.leases import leases_in, take


def test_a_second_holder_of_the_same_ranks_is_refused(directory: Location) -> None:
    first = new_holder([0, 1, 2])
    with held_lease(directory, first):
        with pytest.raises(TargetError) as caught:
            take(directory, 2, 1, 7)
        assert f"already converting into this target: run {first.run} of {first.user} on {first.host}" in str(
            caught.value
        )
        assert "It holds target ranks 1, 2. Wait for it, or convert other ranks with 'ranks'" in str(caught.value)
        assert len(leases_in(directory)) == 1, "who was refused leaves no lease"
    take(directory, 0, 1, 2)
    assert leases_in(directory) == []


def test_many_shared_ranks_are_not_all_listed(directory: Location) -> None:
    with (
        held_lease(directory, new_holder(range(4096))),
        pytest.raises(TargetError, match=r"ranks 0, 1, 2, 3, 4, 5, 6, 7 …\."),
    ):
        take(directory, *range(4096))


def test_other_ranks_are_free(directory: Location) -> None:
    first, second = new_holder([0, 1]), new_holder([2, 3])
    with held_lease(directory, first), held_lease(directory, second):
        assert living_holders(directory, first) == [second]
        assert living_holders(directory, second) == [first]
    assert living_holders(directory, first) == []


def test_who_makes_something_else_is_refused_whatever_the_ranks(directory: Location) -> None:
    with held_lease(directory, new_holder([0], "one")):
        refused = pytest.raises(TargetBusyError, match=r"already converting .* It uses other options")
        with refused, held_lease(directory, new_holder([1], "another")):
            pass
        with held_lease(directory, new_holder([1], "one")):
            pass


def test_a_lease_is_given_back_after_an_error(directory: Location) -> None:
    def failing() -> None:
        with held_lease(directory, new_holder([0])):
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert leases_in(directory) == []
    take(directory, 0)


def test_a_lease_names_its_holder(directory: Location) -> None:
    holder = new_holder([3, 4])
    with held_lease(directory, holder):
        [path] = leases_in(directory)
        fields = json.loads(directory.store.read_beginning(path, 2**20))
    assert (fields["run"], fields["process"], fields["ranks"]) == (holder.run, os.getpid(), [3, 4])
