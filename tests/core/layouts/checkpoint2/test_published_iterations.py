"""Verifying the target that a conversion to a Checkpoint 2.0 was given: the directory of all iterations."""

import re

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.verification.published import verify_target
from tests.support.iterations import iteration_case, iteration_request

SINGLE = iteration_case(1)


def convert_iterations(root: Location, *numbers: int) -> None:
    for number in numbers:
        convert(iteration_request(SINGLE.source, str(root), iteration=str(number)))


def test_the_only_iteration_is_verified(folder: Location) -> None:
    convert_iterations(folder, 7)
    report = verify_target(str(folder), VerifyLevel.CONTENT)
    assert (report.target, report.problems, report.notes) == (str(folder.child("iteration_00000007")), (), ())


def test_the_tracked_one_of_several_iterations_is_verified(folder: Location) -> None:
    convert_iterations(folder, 7, 6)
    report = verify_target(str(folder), VerifyLevel.CHECKSUM)
    assert report.target == str(folder.child("iteration_00000007"))
    tracked = "verifying iteration 7, which latest_checkpointed_iteration.txt names, and not 6;"
    assert report.notes == (f"{folder}: {tracked} to verify another, name its directory",)


def test_iterations_of_others_are_named_and_not_verified(folder: Location) -> None:
    convert_iterations(folder, 7)
    write_bytes(folder.child("iteration_00000009", "common.json"), b"{}")
    report = verify_target(str(folder), VerifyLevel.STRUCTURE)
    assert report.target == str(folder.child("iteration_00000007"))
    assert "verifying iteration 7, the only finished conversion there, and not 9;" in report.notes[0]


def test_several_iterations_without_a_tracker_are_refused(folder: Location) -> None:
    convert_iterations(folder, 6, 7)
    folder.store.remove(folder.child("latest_checkpointed_iteration.txt").path)
    example = re.escape(str(folder.child("iteration_00000007")))
    with pytest.raises(
        InputError, match=f"has several iterations .* that names one of them: name one, such as {example}$"
    ):
        verify_target(str(folder), VerifyLevel.STRUCTURE)


def test_no_iteration_is_a_finished_conversion(folder: Location) -> None:
    write_bytes(folder.child("iteration_00000009", "common.json"), b"{}")
    with pytest.raises(InputError, match="it is not a finished conversion"):
        verify_target(str(folder), VerifyLevel.STRUCTURE)
