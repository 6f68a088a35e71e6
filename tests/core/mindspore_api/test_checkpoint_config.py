"""CheckpointConfig: MindSpore's arguments, and its rules on what excludes what."""

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from reshard.core.changes.info_texts import parse_info
from reshard.core.mindspore_api.checkpoint_config import CheckpointConfig
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from tests.conformance.checkpoint_config_rules import KEY, KEY_NAME, RULES, Rule, configured


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule.given) or str(len(rule.positional)))
class TestEachRule:
    """`make conformance` makes sure that MindSpore does as the table says."""

    def test_what_is_refused(self, rule: Rule) -> None:
        if not rule.message:
            configured(rule)
            return
        with pytest.raises((TypeError, ValueError)) as caught:
            configured(rule)
        assert rule.message in str(caught.value)
        if rule.refused:
            assert type(caught.value).__name__ == rule.refused

    def test_it_is_as_in_mindspore(self, rule: Rule) -> None:
        assert bool(rule.message) == bool(rule.refused) or rule.differs

    def test_what_it_means_for_a_conversion(self, rule: Rule) -> None:
        if rule.message:
            return
        config = configured(rule)
        request = ConversionRequest(source="a", target="b", **config.options())
        assert request.format == rule.given.get("format", "ckpt")
        assert request.write_crc is rule.given.get("crc_check", False)
        assert request.remove_redundancy is rule.given.get("remove_redundancy", False)
        assert request.encrypt_key == (KEY_NAME if KEY in (*rule.positional, *rule.given.values()) else "")
        if "enc_key" in rule.given:
            assert request.encrypt_mode == rule.given.get("enc_mode", "AES-GCM")
        from_training = {name: 0 for name in ("epoch_num", "step_num") if rule.info.get(name) == 0}
        assert dict(request.info) | from_training == rule.info
        latest = LatestConversionRequest(source="a", target="b", **config.latest_options())
        assert (latest.keep_checkpoint_max, latest.keep_checkpoint_per_n_minutes) == rule.kept
        assert latest.info == request.info


def test_what_is_of_training_alone_is_kept() -> None:
    network = {"w": np.zeros(2)}
    config = CheckpointConfig(0, 60, 3, 0, False, "process", network, exception_save=True, incremental=True)
    assert config.saved_network is network
    assert (config.integrated_save, config.async_save, config.exception_save) == (False, "process", True)
    assert (config.map_param_inc, config.enable_redundance) == (True, False)
    assert config.get_checkpoint_policy() == {
        "save_checkpoint_steps": 0,
        "save_checkpoint_seconds": 60,
        "keep_checkpoint_max": 3,
        "keep_checkpoint_per_n_minutes": None,
        "saved_network": network,
    }
    assert config.options() == CheckpointConfig(keep_checkpoint_max=3).options()
    assert CheckpointConfig(append_info=["step_num", {"a": 1}]).append_dict == {"step_num": 0, "a": 1}
    assert CheckpointConfig().append_dict is None


def test_the_options_of_one() -> None:
    config = CheckpointConfig(
        format="safetensors", append_info={"epoch_num": 5, "note": "5", "lr": 0.5}, remove_redundancy=True
    )
    assert config.options() == {
        "format": "safetensors",
        "write_crc": False,
        "append_info": ["epoch_num=5", "note=text:5", "lr=0.5"],
        "remove_redundancy": True,
    }
    assert parse_info(config.options()["append_info"]) == (("epoch_num", 5), ("note", "5"), ("lr", 0.5))
    encrypted = CheckpointConfig(enc_key="file:/secrets/key", enc_mode="AES-CBC").options()
    assert (encrypted["encrypt_key"], encrypted["encrypt_mode"]) == ("file:/secrets/key", "AES-CBC")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"append_info": {"": 1}}, "no '': the name is empty, or has a '=' in it"),
        ({"append_info": {"a=b": 1}}, "no 'a=b': the name is empty"),
        ({"append_info": {"a": 2**64}}, "'a': 18446744073709551616 fits neither Int64 nor UInt64"),
        ({"append_info": {"a": float("inf")}}, "'a': inf is not a finite Float32"),
        ({"append_info": [{"a": np.zeros(2)}]}, "'a' is of type ndarray; a conversion appends no arrays"),
        ({"enc_key": KEY}, "'enc_key' is a key itself; a conversion takes the name of one"),
    ],
)
def test_what_a_conversion_cannot_do(options: dict[str, Any], message: str) -> None:
    config = CheckpointConfig(**options)
    with pytest.raises(ValueError, match="append_info|enc_key|'a'") as caught:
        config.options()
    assert message in str(caught.value)


@pytest.mark.parametrize("key", [b"0123456789abcde", "0123456789abcdef", ""])
def test_a_wrong_key_is_not_repeated(key: Any) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        CheckpointConfig(enc_key=key)
    assert "0123456789" not in str(caught.value)


def test_a_key_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CheckpointConfig(enc_key=KEY)
    assert "0123" not in repr(config)
    assert "0123" not in repr(config.key())
    monkeypatch.setenv("CHECKPOINT_KEY", KEY.decode())
    named = CheckpointConfig(enc_key=KEY_NAME).key()
    assert named is not None
    assert named.secret == KEY


def test_a_key_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKPOINT_KEY", raising=False)
    with pytest.raises(ValueError, match="CHECKPOINT_KEY"):
        CheckpointConfig(enc_key=KEY_NAME).key()


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CheckpointConfig().__setattr__("crc_check", True)


def test_arguments_that_nobody_knows() -> None:
    with pytest.raises(TypeError, match="foo"):
        CheckpointConfig(foo=1)  # type: ignore[call-arg]
