"""Merges the strategy files of a job's ranks into one file."""

from collections.abc import Iterator

from pydantic import Field

from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.options.fields import RequiredUrl, StorageName
from reshard.core.options.validation import RequestModel
from reshard.core.reports.blocks import Block, Line
from reshard.core.reports.report import Report
from reshard.core.runtime.wording import counted
from reshard.core.storage.placement import check_new_file
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy


class MergeRequest(RequestModel):
    """Merge the strategy files that the ranks of one job wrote into one file."""

    source: RequiredUrl = Field(
        title="Strategy files",
        description="The directory of the ranks' strategy files, whatever their names; or one strategy file, to be "
        "written in the other format.",
    )
    target: RequiredUrl = Field(
        title="Merged strategy", description="The file to be written: JSON if its name ends in .json, else protobuf."
    )
    overwrite: bool = Field(
        default=False, description="Replace the file if it is there; it stays until the new one is."
    )
    storage: StorageName = ""


class MergeReport(Report):
    """The strategy that was written, and its sizes."""

    url: str
    stages: int
    devices_per_stage: int
    parameters: int

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a line."""
        of_stages = f"{counted(self.stages, 'stage')} of {counted(self.devices_per_stage, 'device')}"
        yield Line(f"{self.url}: {of_stages}, {counted(self.parameters, 'parameter')}")


def merge_files(source: str, target: str, overwrite: bool = False) -> MergeReport:
    """Merge a directory's strategy files into one file; see `read_any_strategy` and `write_strategy`.

    Raises:
        InputError: the target exists, or is a directory.
        StrategyError: the files do not make one strategy, or the target's format cannot hold it.
    """
    location = parse_url(target)
    check_new_file(location, parse_url(source), overwrite)
    strategy = read_any_strategy(source)
    write_strategy(strategy, target)
    return MergeReport(
        url=str(location),
        stages=len(strategy.stages),
        devices_per_stage=strategy.devices_per_stage,
        parameters=len(strategy.parameters),
    )
