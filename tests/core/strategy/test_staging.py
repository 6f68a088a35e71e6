"""Which stage holds what, with other numbers of stages."""

import pytest

from reshard.core.errors import StrategyError
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.staging import Staging, assign_stages, owner_of, parse_place
from reshard.core.tensor.layout import ParameterLayout

LAYOUT = ParameterLayout((2,), ((),))


def strategy(*stages: str) -> Strategy:
    """A strategy whose stages hold these parameters, separated by blanks."""
    return Strategy(
        tuple(StageStrategy(number, dict.fromkeys(names.split(), LAYOUT)) for number, names in enumerate(stages)), "src"
    )


def staged(source: Strategy, count: int, layers: str = "", *places: str) -> Staging:
    return assign_stages(source, count, layers, [parse_place(text) for text in places])


def names(staging: Staging) -> list[str]:
    return [" ".join(sorted(held)) for held in staging.sources]


TWO = strategy("embed l.0.w l.1.w", "l.2.w l.3.w norm head")
ONE = strategy("model.embed l.0.w l.1.w l.10.w l.2.w norm adam_m.l.10.w adam_m.norm")


def test_more_stages() -> None:
    staging = staged(TWO, 4)
    assert names(staging) == ["embed l.0.w", "l.1.w", "l.2.w", "head l.3.w norm"]
    assert staging.layers == ("0", "1", "2", "3")
    assert staging.sources[1] == {"l.1.w": 0}
    assert staging.sources[3] == {"l.3.w": 1, "norm": 1, "head": 1}


def test_one_stage() -> None:
    assert names(staged(TWO, 1)) == ["embed head l.0.w l.1.w l.2.w l.3.w norm"]


def test_the_same_stages_stay_as_they_are() -> None:
    interleaved = strategy("l.0.w l.2.w x", "l.1.w l.3.w y")
    assert names(staged(interleaved, 2)) == ["l.0.w l.2.w x", "l.1.w l.3.w y"]
    assert names(staged(interleaved, 2, "0-1,2-3")) == ["l.0.w l.1.w x", "l.2.w l.3.w y"]


def test_layers_count_as_numbers_and_states_follow_them() -> None:
    staging = staged(ONE, 2)
    assert names(staging) == ["l.0.w l.1.w model.embed", "adam_m.l.10.w adam_m.norm l.10.w l.2.w norm"]
    assert staging.layers == ("0-1", "2,10")
    [note] = staging.notes
    assert "placed by their names, since the source has one stage: model.embed in the first stage, norm in the" in note


def test_not_evenly() -> None:
    staging = staged(TWO, 3)
    assert staging.layers == ("0-1", "2", "3")
    assert "4 layers do not divide evenly over 3 stages: they have 2, 1, 1" in staging.notes[0]


def test_as_given() -> None:
    assert staged(TWO, 2, "0+2,1+3").layers == ("0,2", "1,3")
    assert staged(TWO, 3, "0,1-2,3").layers == ("0", "1-2", "3")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0-1", "gives layers to 1 stage, but 'pipeline' says 2"),
        ("0-1,2-4", "layer 4: there are layers 0-3"),
        ("0-2,2-3", "layer 2: is given twice"),
        ("0-1,3", "gives no stage to layers 2"),
        ("0-1,x", "'x' is not a range of layers"),
        ("1-0,2-3", "'1-0' is not a range of layers"),
    ],
)
def test_wrong_layers(layers: str, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        staged(TWO, 2, layers)


def test_tied_embeddings_stay_in_the_first_and_the_last_stage() -> None:
    tied = strategy("embed l.0.w", "l.1.w", "l.2.w embed")
    assert names(staged(tied, 2)) == ["embed l.0.w l.1.w", "embed l.2.w"]
    assert [held.get("embed") for held in staged(tied, 3).sources] == [0, None, 2]
    assert names(staged(tied, 1)) == ["embed l.0.w l.1.w l.2.w"]


def test_what_all_stages_share() -> None:
    assert names(staged(strategy("f l.0.w", "f l.1.w", "f l.2.w l.3.w"), 4)) == [f"f l.{n}.w" for n in range(4)]


def test_what_both_stages_share_is_taken_to_be_tied() -> None:
    both = strategy("f l.0.w l.1.w adam_m.f", "f l.2.w l.3.w adam_m.f")
    staging = staged(both, 4)
    assert names(staging) == ["adam_m.f f l.0.w", "l.1.w", "l.2.w", "adam_m.f f l.3.w"]
    [note] = staging.notes
    assert note.startswith("in both of the source's stages, so taken to be in the first and the last: f. If all stages")
    assert names(staged(both, 4, "", "f=all"))[1] == "adam_m.f f l.1.w"
    assert staged(both, 4, "", "f=all").notes == staged(both, 2).notes == staged(both, 1).notes == ()


def test_layers_in_turns() -> None:
    interleaved = strategy("l.0.w l.2.w", "l.1.w l.3.w")
    [note] = staged(interleaved, 4).notes
    assert note.startswith("the source's stages hold layers in turns, as interleaved pipelines do")
    assert staged(interleaved, 4, "0,1,2,3").notes == staged(interleaved, 1).notes == ()


def test_stacks_of_layers_follow_each_other() -> None:
    stacks = strategy("enc.layers.0.w enc.layers.1.w", "dec.layers.0.w dec.layers.1.w")
    staging = staged(stacks, 4)
    assert names(staging) == ["enc.layers.0.w", "enc.layers.1.w", "dec.layers.0.w", "dec.layers.1.w"]
    assert staging.layers == ("enc.layers.0", "enc.layers.1", "dec.layers.0", "dec.layers.1")
    assert staged(stacks, 2, "0-2,3").layers == ("enc.layers.0-1, dec.layers.0", "dec.layers.1")


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(StrategyError, match=r"the stage of 'odd' is unknown.*places=\['PATTERN=first'\]"):
        staged(strategy("odd l.0.w l.1.w"), 2)
    with pytest.raises(StrategyError, match="the stage of 'odd' is unknown"):
        staged(strategy("l.0.w", "odd l.1.w", "l.2.w"), 2)


def test_rules_say_it() -> None:
    source = strategy("embed odd adam_m.odd l.0.w l.1.w")
    assert names(staged(source, 2, "", "odd=1", "embed=first,last")) == ["embed l.0.w", "adam_m.odd embed l.1.w odd"]
    assert names(staged(TWO, 2, "", "head=all"))[0] == "embed head l.0.w l.1.w"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("odd=2", "'2' is not a stage: first, last, all, or a number from 0 to 1"),
        ("none*=first", "no parameter matches 'none*'"),
        ("odd", "has to be PATTERN=first"),
    ],
)
def test_wrong_rules(place: str, message: str) -> None:
    with pytest.raises(StrategyError) as error:
        staged(strategy("odd l.0.w l.1.w"), 2, "", place)
    assert message in str(error.value)


def test_too_few_layers() -> None:
    with pytest.raises(StrategyError, match="2 layers for 3 stages"):
        staged(strategy("l.0.w l.1.w"), 3)
    with pytest.raises(StrategyError, match="0 layers for 2 stages"):
        staged(strategy("embed head"), 2)


def test_states_belong_to_their_parameters() -> None:
    known = frozenset(("net.l.0.w", "b"))
    assert owner_of("adam_m.net.l.0.w", known) == "net.l.0.w"
    assert owner_of("strange.b", known) == "b"
    assert owner_of("adam_v.elsewhere.w", known) == "elsewhere.w"
    assert owner_of("net.l.0.w", known) == "net.l.0.w"
