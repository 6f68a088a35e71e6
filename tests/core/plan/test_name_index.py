"""Names grouped by their form, against every template tried on every name."""

from hypothesis import given
from hypothesis import strategies as st

from reshard.core.changes.templates import parse_template
from reshard.core.plan.name_index import NameIndex

NAMES = ["a.0.w1", "a.1.w1", "a.10.w1", "a.01.w1", "a.1.w2", "a.x.w1", "1.1", "11", "a#.w1", "a.1.w11", "b"]
TEMPLATES = ["a.{i}.w1", "a.{i+1}.w1", "a.1.w{i}", "{i}.1", "{i}{j}", "a.{x:*}", "a{x:#|.1}.w1", "b", "c", "a.{i}.w{j}"]


@given(st.lists(st.sampled_from(NAMES)), st.sampled_from(TEMPLATES))
def test_no_name_is_lost(names: list[str], text: str) -> None:
    template = parse_template(text)
    fitting = [name for name in dict.fromkeys(names) if template.fitting(name) is not None]
    assert sorted(NameIndex(names).fitting(template)) == sorted(fitting)
