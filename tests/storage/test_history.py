"""The history of targets in an object store: a few requests for each target, side by side."""

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.history import ConversionState
from reshard.core.conversion.target_history import target_history
from reshard.core.errors import InputError
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY
from tests.support.checkpoints import case
from tests.support.stores import Store

FOUR_TO_THREE = case(7009)


def states(url: str) -> dict[str, tuple[str, str]]:
    found = target_history(url)
    assert len({each.target for each in found}) == len(found)
    return {str(each.target).rpartition("/")[2]: (each.state.value, each.reason) for each in found}


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_finished_and_unfinished_targets_take_a_few_requests_each(store: Store) -> None:
    for name in ("one", "two"):
        convert(FOUR_TO_THREE.request(store.url(f"targets/{name}")))
    convert(FOUR_TO_THREE.request(store.url("targets/begun"), ranks="0-1"))
    for number in range(5):
        file = store.files(f"targets/foreign_{number}/rank_0/a.ckpt")
        file.parent.mkdir(parents=True)
        file.write_bytes(b"1")
    store.server.look_again()
    store.proxy.forget()
    assert states(store.url("targets")) == {
        "one": ("committed", ""),
        "two": ("committed", ""),
        "begun": ("unfinished", "2 ranks done"),
    }
    asked = store.proxy.counts()
    # a listing of the targets and of the place itself; for each target its manifest, and a listing where there is none
    assert asked == {"GetObject": 9, "ListObjectsV2": 8}


@pytest.mark.parametrize("protocol", ["s3"])
def test_a_target_itself_and_one_without_its_manifest(store: Store) -> None:
    url = store.url("target")
    convert(FOUR_TO_THREE.request(url))
    assert states(url) == {"target": ("committed", "")}
    store.files(f"target/{STATE_DIRECTORY}/{MANIFEST_NAME}").unlink()
    store.server.look_again()
    assert states(url) == {"target": ("unfinished", "3 ranks done")}
    [entry] = target_history(url)
    assert entry.state is ConversionState.UNFINISHED
    assert entry.ended


@pytest.mark.parametrize("protocol", ["s3"])
def test_a_place_without_objects_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="does not exist"):
        target_history(store.url("nowhere"))
