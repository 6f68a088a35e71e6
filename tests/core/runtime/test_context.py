"""Context variables that have a value for the time of a block."""

from contextvars import ContextVar

import pytest

from reshard.core.runtime.context import having


def test_a_value_lasts_as_long_as_its_block() -> None:
    variable = ContextVar("variable", default=0)
    with having(variable, 1) as given:
        assert (given, variable.get()) == (1, 1)
        with pytest.raises(ValueError, match="inner"), having(variable, 2):
            raise ValueError(f"inner {variable.get()}")
        assert variable.get() == 1
    assert variable.get() == 0
