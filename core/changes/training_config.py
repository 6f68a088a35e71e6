"""A training's configuration: the facts in MindFormers' YAML that a checkpoint does not hold.

What a field means, and what is done without it, depends on MindFormers' version, which no configuration names. Its
fields show one of two generations. Until August 2025, as in MindFormers 1.6, there is one field,
`use_contiguous_weight_layout`, and `linear_fc1` always has all of gate, then all of up. Since then, as in 1.7 and 2.0,
there are two fields of other names, with other defaults. PyNative mode (2.0) has configurations of a form of its own;
it reads neither field, and always does what their defaults say.
"""

from collections.abc import Mapping

from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.text.options import option

OLDER, NEWER = "1.6", "1.7"
GENERATIONS = {OLDER: "MindFormers 1.6", NEWER: "MindFormers 1.7 and later"}
"""Generation -> the versions of MindFormers in it."""

_ATTENTION, _MLP = "use_contiguous_weight_layout_attention", "use_interleaved_weight_layout_mlp"
_OLDER_ATTENTION = "use_contiguous_weight_layout"
_PYNATIVE_SECTIONS = {"training", "parallelism"}
_ALWAYS_IN_PYNATIVE = {_ATTENTION: "false", _MLP: "true"}


class TrainingConfig(Record):
    """What a training's configuration says.

    Attributes:
        url: its place, for messages.
        values: field, by its newest name -> value, in lower case; the first of several.
        doubts: field -> why its value does not tell what the training did.
        generation: that of MindFormers; empty if the fields do not show it.
    """

    url: str
    values: Mapping[str, str]
    doubts: Mapping[str, str]
    generation: str

    def value_of(self, name: str) -> str:
        """Return the value of a field; empty if it is not there.

        Raises:
            InputError: it has several values, or one that is not certain to count.
        """
        if name in self.doubts:
            raise InputError(
                f"{self.url}: {self.doubts[name]}: say which value counts with {option('switch', [f'{name}=VALUE'])}"
            )
        return self.values.get(name, "")

    def unknown_default(self, name: str) -> str:
        """Describe why the default of a field that is not there is not known."""
        return (
            f"{self.url}: says neither {name} nor anything else that shows MindFormers' version, on which its default "
            "depends"
        )


def read_training_config(url: str) -> TrainingConfig:
    """Read a training's configuration; fields may stand anywhere in it, and several times.

    Raises:
        InputError: the document is malformed.
        StorageError: a transient failure.
    """
    from reshard.core.changes.documents import parse_fields, read_document  # loads YAML

    fields = [
        (path, value.lower())
        for path, value in parse_fields(read_document(url), url, "training's configuration", "model: …")
        if path
    ]
    found: dict[str, dict[str, None]] = {}
    for path, value in fields:
        found.setdefault(path[-1], {})[value] = None
    is_pynative = {path[0] for path, _ in fields if len(path) > 1} >= _PYNATIVE_SECTIONS
    is_older, is_newer = _OLDER_ATTENTION in found, is_pynative or not found.keys().isdisjoint((_ATTENTION, _MLP))
    doubts: dict[str, str] = {}
    if is_older and is_newer and _ATTENTION not in found:
        doubts[_ATTENTION] = f"has {_OLDER_ATTENTION}, of MindFormers {OLDER}, beside what only later versions have"
    for value in found.pop(_OLDER_ATTENTION, {}):
        found.setdefault(_ATTENTION, {})[value] = None
    doubts |= {name: f"has {name} as {' and as '.join(values)}" for name, values in found.items() if len(values) > 1}
    for name, always in _ALWAYS_IN_PYNATIVE.items() if is_pynative else ():
        if found.get(name, {always: None}).keys() != {always}:
            doubts[name] = f"has {name}, which PyNative mode ignores, as {' and as '.join(found[name])}"
    generation = ""
    if is_newer != is_older:
        generation = NEWER if is_newer else OLDER
    return TrainingConfig(url, {name: next(iter(values)) for name, values in found.items()}, doubts, generation)
