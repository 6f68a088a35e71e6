"""Options that only a Checkpoint 2.0 knows."""

import re
from typing import Annotated

from pydantic import Field

from reshard.core.layouts.checkpoint2.common_texts import parse_common_texts
from reshard.core.options.fields import matching, parsed_by, pattern_of

Iteration = Annotated[
    str,
    Field(json_schema_extra=pattern_of(r"^([0-9]{1,18})?$", "the number of an iteration, such as 40")),
    matching(re.compile(r"([0-9]{1,18})?", re.ASCII), "must be the number of an iteration, such as 40"),
]
CommonTexts = Annotated[list[str], parsed_by(parse_common_texts)]
