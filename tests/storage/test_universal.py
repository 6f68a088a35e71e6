"""Universal checkpoints of DeepSpeed on an object store."""

from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.errors import StorageError, TargetError
from reshard.core.request.conversion import build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.target.cleaning import clean
from reshard.core.verification.published import verify_target
from tests.support.conversions import outcomes
from tests.support.deepspeed_files import deepspeed_case
from tests.support.megatron_files import read_tree
from tests.support.stores import Store
from tests.support.zero_files import ZeroTraining, random_model, write_zero

CASE = deepspeed_case("case_zero2_two_groups_tied_frozen")
TAG = "global_step2_universal"


def request(store: Store, **options: object) -> dict[str, object]:
    source = store.url("in") if store.files("in").exists() else store.add(CASE.root, "in")
    return {"source": source, "target": store.url("out"), "layout": "universal"} | options


@pytest.mark.parametrize("protocol", ["obs"])
def test_written_verified_and_replaced(store: Store) -> None:
    asked = build_request(**request(store, verify="content", overwrite=True))
    report = convert(asked)
    assert report.target == store.url(f"out/{TAG}")
    assert (store.files("out") / "latest_universal").read_text() == TAG
    assert convert(asked).written_bytes == 0
    assert verify_target(report.target, VerifyLevel.CONTENT).problems == ()
    folder = store.files("out") / TAG / "zero/model.embed_tokens.weight"
    dtype, shape, data = CASE.want["exp_avg.model.embed_tokens.weight"]
    found = read_tree(folder / "exp_avg.pt")["param"]
    assert (found.dtype, found.shape, found.data) == (dtype, shape, data)
    convert(build_request(**request(store, overwrite=True, exclude=["*lm_head*"])))
    assert not (store.files("out") / TAG / "zero/lm_head.weight/fp32.pt").exists()
    assert verify_target(report.target, VerifyLevel.CHECKSUM).problems == ()


@pytest.mark.parametrize("protocol", ["obs"])
def test_killed_and_cleaned_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise StorageError("stopped")

    asked = build_request(**request(store))
    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.target.target.Target.commit", stopped)
        with pytest.raises(StorageError, match="stopped"):
            convert(asked)
    with pytest.raises(TargetError, match="unfinished conversion by another plan"):
        convert(build_request(**request(store, exclude=["*lm_head*"])))
    assert set(outcomes(convert(asked))) == {"resumed"}
    with monkeypatch.context() as patch:
        patch.setattr("reshard.core.target.target.Target.commit", stopped)
        with pytest.raises(StorageError, match="stopped"):
            convert(build_request(**request(store, target=store.url("other"))))
    assert clean(store.url(f"other/{TAG}"), remove=True).removed
    assert not list((store.files("other") / TAG).rglob("*.pt"))


def test_steps_as_they_come(store: Store, tmp_path: Path) -> None:
    model = random_model(1, [{"w": (4, 3)}, {"b": (5,)}])
    for number in (3, 5, 7):
        write_zero(tmp_path / "training", model, ZeroTraining(step=number))
        source = store.add(tmp_path / "training", f"training_{number}")
        asked = {"source": source, "target": store.url("out"), "layout": "universal", "keep_checkpoint_max": 2}
        report = convert_latest(LatestConversionRequest.model_validate(asked))
        assert report.step == str(number)
    assert (store.files("out") / "latest_universal").read_text() == "global_step7_universal"
    step = read_tree(store.files("out") / "global_step7_universal/zero/w/step.pt")
    assert step.data == b"\0\0\xe0\x40"
