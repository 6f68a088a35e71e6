"""What a training's configuration says, by the version of MindFormers that its fields show."""

from pathlib import Path

import pytest

from reshard.core.changes.training_config import NEWER, OLDER, TrainingConfig, read_training_config
from reshard.core.errors import InputError

ATTENTION, MLP = "use_contiguous_weight_layout_attention", "use_interleaved_weight_layout_mlp"
OLDER_ATTENTION = "use_contiguous_weight_layout"


def read(directory: Path, text: str, name: str = "train.yaml") -> TrainingConfig:
    path = directory / name
    path.write_text(text)
    return read_training_config(str(path))


def below_model(*lines: str) -> str:
    return "\n".join(["model:", "  model_config:", *(f"    {line}" for line in lines)])


@pytest.mark.parametrize(
    ("lines", "generation"),
    [
        ([f"{OLDER_ATTENTION}: False"], OLDER),
        ([f"{ATTENTION}: False"], NEWER),
        ([f"{MLP}: True"], NEWER),
        (["qkv_concat: True"], ""),
        ([f"{OLDER_ATTENTION}: False", f"{ATTENTION}: False"], ""),
    ],
)
def test_fields_show_the_version_of_mindformers(lines: list[str], generation: str, tmp_path: Path) -> None:
    assert read(tmp_path, below_model(*lines)).generation == generation


def test_a_field_has_its_newest_name(tmp_path: Path) -> None:
    config = read(tmp_path, below_model(f"{OLDER_ATTENTION}: True"))
    assert (config.value_of(ATTENTION), config.value_of(MLP)) == ("true", "")


def test_fields_that_are_there_twice_and_agree_are_read(tmp_path: Path) -> None:
    config = read(tmp_path, below_model("qk_layernorm: True", f"{MLP}: False", "qk_layernorm: False", f"{MLP}: False"))
    assert config.value_of(MLP) == "false"


def test_a_deciding_field_that_is_there_twice_with_different_values_is_refused(tmp_path: Path) -> None:
    config = read(tmp_path, below_model(f"{MLP}: False", f"{MLP}: True"))
    with pytest.raises(InputError, match=rf"{MLP} as false and as true: say .* with switch=\['{MLP}=VALUE'\]$"):
        config.value_of(MLP)
    assert config.value_of(ATTENTION) == ""


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            [f"{OLDER_ATTENTION}: True", f"{MLP}: True"],
            f"has {OLDER_ATTENTION}, of MindFormers 1.6, beside what only later versions have: say which value counts",
        ),
        ([f"{OLDER_ATTENTION}: True", f"{ATTENTION}: False"], f"has {ATTENTION} as false and as true"),
    ],
)
def test_fields_of_two_versions_do_not_decide(lines: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, below_model(*lines)).value_of(ATTENTION)


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", "true"), ("off", "false"), ("FALSE", "false"), ("'False'", '"false"'), ('"true"', '"true"')],
)
def test_a_boolean_in_quotes_is_a_text_which_is_true_for_python(text: str, value: str, tmp_path: Path) -> None:
    assert read(tmp_path, below_model(f"{MLP}: {text}")).value_of(MLP) == value


def test_a_boolean_in_quotes_in_json_is_a_text(tmp_path: Path) -> None:
    assert read(tmp_path, f'{{"{MLP}": "False", "{ATTENTION}": false}}', "train.json").values == {
        MLP: '"false"',
        ATTENTION: "false",
    }


def test_a_list_has_no_value(tmp_path: Path) -> None:
    assert read(tmp_path, below_model(f"{MLP}: [False]")).value_of(MLP) == ""


PYNATIVE = "training: {steps: 10}\nparallelism: {tensor_parallel: 1}\nmodel:\n  model_type: deepseek_v3\n"


def test_pynative_mode_has_the_newer_defaults_whatever_its_fields_say(tmp_path: Path) -> None:
    config = read(tmp_path, PYNATIVE)
    assert (config.generation, config.value_of(MLP)) == (NEWER, "")
    config = read(tmp_path, f"{PYNATIVE}  {MLP}: False\n  {ATTENTION}: False\n")
    assert config.value_of(ATTENTION) == "false"
    with pytest.raises(InputError, match=f"has {MLP}, which PyNative mode ignores, as false"):
        config.value_of(MLP)


def test_json_is_read_as_yaml_is(tmp_path: Path) -> None:
    text = f'{{"model": [{{"{MLP}": false}}, {{"{MLP}": false, "x": 1, "x": 1}}, {{"y": null}}]}}'
    config = read(tmp_path, text, "train.json")
    assert (config.value_of(MLP), config.value_of("x"), config.value_of("y")) == ("false", "1", "null")


@pytest.mark.parametrize("text", ["- a", "model", "[1, 2]"])
def test_what_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a training's configuration: it must be a mapping, such as 'model: …'"):
        read(tmp_path, text)


def test_an_empty_document_says_nothing(tmp_path: Path) -> None:
    config = read(tmp_path, "")
    assert (config.generation, config.value_of(MLP)) == ("", "")


@pytest.mark.parametrize("name", ["train.yaml", "train.json"])
def test_deep_nesting_is_read_or_refused(name: str, tmp_path: Path) -> None:
    for depth in (100, 450, 900, 20_000):
        text = f'{{"{MLP}": false, "x": {"[" * depth}{"]" * depth}}}'
        try:
            assert read(tmp_path, text, name).value_of(MLP) == "false"
        except InputError as error:
            assert "not a readable training's configuration" in str(error)
