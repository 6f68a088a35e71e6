"""Storage options in blocks of Prefect open storages in all tasks of a run, and nothing that it leaves has them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.blocks.system import Secret
from prefect.filesystems import RemoteFileSystem
from prefect.settings import PREFECT_API_URL, temporary_settings

from reshard.core.errors import ConversionError, InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.tasks.storages import options_of_block
from tests.support.checkpoints import case
from tests.support.locked_storage import KEY, LockedFileSystem, locked_storage, put_tree

FOUR_TO_THREE = case(7009)


@pytest.fixture(autouse=True)
def storage() -> Iterator[None]:
    with locked_storage() as fs:
        put_tree(fs, FOUR_TO_THREE.directory, "/models")
        yield


def keep(name: str, value: Any) -> None:
    Secret(value=value).save(name, overwrite=True)


def request(target: Path | str = "locked://out/run", **options: object) -> ConversionRequest:
    urls = {
        "source": "locked://models/src",
        "source_strategy": "locked://models/src_strategy.ckpt",
        "target_strategy": "locked://models/dst_strategy.ckpt",
    }
    return FOUR_TO_THREE.request(target, **(urls | options))


def test_a_block_opens_what_a_run_reads_and_writes_and_is_nowhere_repeated(caplog: pytest.LogCaptureFixture) -> None:
    keep("locked", {"key": KEY})
    asked = request(source_storage="block:locked", target_storage="block:locked")
    with caplog.at_level("DEBUG"):
        state: Any = convert_checkpoint(asked, return_state=True)
    report = state.result()
    assert report.committed

    run_id = state.state_details.flow_run_id
    ours = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}}
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id).model_dump_json()
        artifacts = client.request("POST", "/artifacts/filter", json=ours).text
    assert "block:locked" in run
    assert "conversion-ranks" in artifacts
    assert "Beginning flow run" in caplog.text
    written = {path: file.getvalue() for path, file in LockedFileSystem.store.items() if path.startswith("/out/")}
    assert len([path for path in written if path.endswith(".ckpt")]) == FOUR_TO_THREE.info["dst_world"]
    for left in (run, artifacts, caplog.text, report.model_dump_json(), str(written)):
        assert KEY not in left


def test_a_run_that_names_no_such_block_fails_with_its_name(tmp_path: Path) -> None:
    state: Any = convert_checkpoint(request(source_storage="block:not-there", target=tmp_path), return_state=True)
    reason = "block:not-there: Prefect has no Secret and no RemoteFileSystem block of that name"
    assert (state.type.value, state.message) == ("FAILED", reason)
    with pytest.raises(InputError, match=reason):
        state.result()


@pytest.mark.parametrize("value", [{"key": "k"}, '{"key": "k"}'])
def test_a_secret_holds_an_object_or_its_text(value: Any) -> None:
    keep("either", value)
    assert options_of_block("either") == {"key": "k"}


def test_of_a_remote_file_system_the_settings_count() -> None:
    RemoteFileSystem(basepath="s3://models", settings={"key": "k"}).save("files", overwrite=True)
    assert options_of_block("files") == {"key": "k"}


def test_a_secret_that_is_no_object_is_refused_and_not_repeated(tmp_path: Path) -> None:
    keep("text", KEY)
    state: Any = convert_checkpoint(request(source_storage="block:text", target=tmp_path), return_state=True)
    assert state.message.startswith("block:text: is not a JSON object of storage options")
    assert KEY not in state.message


def test_a_server_that_does_not_answer_is_no_mistake_of_the_users() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(ConversionError, match="block:b: cannot be loaded from Prefect: .*refused"),
    ):
        options_of_block("b")
