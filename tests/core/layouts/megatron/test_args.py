"""The arguments of a training, in Megatron's and in MindSpeed's words."""

import pytest

from reshard.core.errors import CatalogError
from reshard.core.layouts.megatron.args import MegatronArgs, model_numbers, parse_args
from reshard.core.runtime.pickled import Global, Pairs, PickledObject

NAMESPACE = Global("argparse", "Namespace")


def _namespace(**fields: object) -> PickledObject:
    known = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "num_layers": 4}
    return PickledObject(NAMESPACE, (), Pairs((known | fields).items()))


def _parsed(**fields: object) -> MegatronArgs:
    return parse_args(_namespace(**fields), "somewhere")


def test_what_is_not_said_is_none_or_has_megatrons_default() -> None:
    args = _parsed()
    assert (args.tensor_size, args.expert_tensor_size, args.expert_size) == (2, 2, 1)
    assert args.gated is None
    assert args.virtual_size is None


def test_old_protocols_name_the_class_as_an_argument() -> None:
    fields = _namespace().state
    made = PickledObject(Global("copyreg", "_reconstructor"), (NAMESPACE, Global("builtins", "object"), None), fields)
    assert parse_args(made, "somewhere") == _parsed()


@pytest.mark.parametrize("activation", ["geglu", "quick_geglu"])
def test_a_gate_of_another_activation(activation: str) -> None:
    assert _parsed(swiglu=False, **{activation: True}).gated
    assert not _parsed(swiglu=False, **{activation: False}).gated


def test_both_spellings() -> None:
    assert _parsed(intermediate_size=8).ffn == _parsed(ffn_hidden_size=8).ffn == 8
    assert _parsed(kv_channels=None, head_dim=8).head_size == 8
    assert _parsed(group_query_attention=True, num_query_groups=2, num_attention_heads=4).groups == 2
    assert _parsed(group_query_attention=False, num_query_groups=1, num_attention_heads=4).groups == 4
    assert _parsed(group_query_attention=False, num_key_value_heads=2, num_attention_heads=4).groups == 2


def test_each_gated_activation_has_an_argument_of_its_own() -> None:
    """With gpt-oss's, swiglu is False."""
    assert _parsed(swiglu=False, quick_geglu=True).gated is True
    assert _parsed(swiglu=True, quick_geglu=False).gated is True
    assert _parsed(swiglu=False, quick_geglu=False).gated is False


@pytest.mark.parametrize("value", ["1,4", [1, 4], (1, 4), PickledObject(Global("builtins", "set"), ([1, 4],)), "1, 4"])
def test_lists_of_numbers_as_text_or_as_training_has_read_them(value: object) -> None:
    assert _parsed(noop_layers=value).noop_layers == (1, 4)


def test_placements_of_their_own_are_named() -> None:
    args = _parsed(pipeline_model_parallel_layout="Et|tL", account_for_loss_in_pipeline_split=False)
    assert args.own_placements == ("pipeline_model_parallel_layout",)


def test_numbers_of_the_model_have_hugging_faces_names() -> None:
    args = _parsed(hidden_size=32, num_layers=6, noop_layers="1,4", vocab_size=31, padded_vocab_size=32)
    numbers = model_numbers(args)
    assert numbers == {"num_hidden_layers": 4, "hidden_size": 32, "vocab_size": 31}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor_model_parallel_size": 0}, "tensor_model_parallel_size is 0, not a number from 1 to 1048576"),
        ({"tensor_model_parallel_size": True}, "tensor_model_parallel_size is True, not a number"),
        ({"num_layers": 1 << 70}, "num_layers is 1180591620717411303424, not a number from 1 to 65536"),
        ({"num_layers": None}, "num_layers is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32', not a number"),
        ({"schedules_method": 4}, "schedules_method is 4, not a text"),
        ({"swiglu": 1}, "swiglu is 1, not True or False"),
        ({"noop_layers": "1,x"}, "noop_layers is '1,x', not a list of numbers"),
        ({"noop_layers": 3}, "noop_layers is 3, not a list of numbers"),
        ({"num_layer_list": [4, -1]}, r"num_layer_list is \[4, -1\], not a list of numbers"),
        ({"num_layer_list": PickledObject(Global("os", "system"), ("x",))}, "is an object of os.system, not a list"),
    ],
)
def test_values_that_no_training_has(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        _parsed(**fields)


def test_all_problems_are_listed() -> None:
    with pytest.raises(CatalogError) as caught:
        _parsed(tensor_model_parallel_size=None, hidden_size=-1)
    assert "tensor_model_parallel_size is missing" in str(caught.value)
    assert "hidden_size is -1" in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, PickledObject(Global("argparse", "Action"), (), Pairs())])
def test_no_namespace(value: object) -> None:
    with pytest.raises(CatalogError, match="somewhere: its 'args' are not an argparse.Namespace"):
        parse_args(value, "somewhere")
