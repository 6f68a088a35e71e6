import pytest

from reshard.core.errors import PlanError
from reshard.core.layouts.checkpoint2.target import IterationTarget
from tests.support.plans import entry, make_catalog, make_strategy, plan_of, vector


def test_a_target_of_which_no_parameter_is_left_is_refused() -> None:
    """The target's strategy has another parameter only, which may be missing."""
    catalog = make_catalog({0: [entry("w", (2,))], 1: [entry("w", (2,))]})
    source, target = make_strategy({"w": vector(2, cut=True)}), make_strategy({"v": vector(2)})
    with pytest.raises(PlanError, match=r"cannot become a Checkpoint 2\.0: no parameter is left of it"):
        plan_of(catalog, source, target, allow_missing=("*",), layout=IterationTarget(40, (), tracked=True))
