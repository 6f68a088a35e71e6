"""Parts of a checkpoint: its pipeline stages, converted one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import CONVERSIONS, read_ckpt

CASE = CONVERSIONS / "case_7010"
Make = Callable[..., str]


def maker_of_parts(directory: Path) -> Make:
    """A function that converts one stage into a directory of its own, and returns which."""

    def make(stage: int, **options: object) -> str:
        target = directory / f"stage{stage}{len(list(directory.iterdir()))}"
        convert(
            build_request(
                **{
                    "source": str(CASE / "src"),
                    "target": str(target),
                    "source_strategy": str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
                    "target_strategy": str(CASE / "dst_strategy.ckpt"),
                    **options,
                }
            )
        )
        return str(target)

    return make


def contents(directory: Path) -> dict[str, dict[str, Any]]:
    """Rank folder -> all parameters of its files."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("rank_*/*.ckpt")):
        found.setdefault(path.parent.name, {}).update(read_ckpt(path))
    return found
