"""The base of all frozen records.

They are structs of msgspec: a dataclass takes ten times as long to define and five times as long to make, and programs
define hundreds of classes before they begin.
"""

from typing import dataclass_transform

import msgspec


# mypy takes subclasses for frozen because of this decorator, not because the base is
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True):
    """A frozen record: fields as in a dataclass, compared and hashed by value.

    Options go behind the base: `dict=True` for a class with a `cached_property`, `eq=False` where two instances are
    never the same, `order=True`. `msgspec.structs.replace` makes a changed copy.
    """
