"""Checks of a conversion into whole tensors against what a judge says that they are."""

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.differences import differences
from tests.conformance.mindspore_process import RefusalError
from tests.support.checkpoints import Contents
from tests.support.families import directory_contents


def problems_of(case: object, found: Iterable[str]) -> Iterator[str]:
    """Yield what a check of a case finds, or what it raises, each with the case."""
    try:
        for problem in found:
            yield f"{case}: {problem}"
    except (ReshardError, RefusalError) as error:
        yield f"{case}: {type(error).__name__}: {error}"
    except Exception:
        yield f"{case}: {traceback.format_exc()}"


def unlike_whole(source: Path, target: Path, want: Contents, **options: object) -> list[str]:
    """Convert a checkpoint into whole tensors, and return how they differ from those wanted."""
    given = {"source": str(source), "target": str(target), "layout": "unified", "verify": "content", "workers": 1}
    convert(build_request(**given | options))
    return differences("whole", {0: directory_contents(target)}, {0: want})
