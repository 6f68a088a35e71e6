"""The requests of conversions: the one definition behind the command line, the flow's form and programs."""

from typing import Annotated

from pydantic import Field, field_validator

from reshard.core.errors import InputError
from reshard.core.layouts.all_options import LAYOUT_OPTIONS, layout_options_of
from reshard.core.layouts.options import LayoutOptions, with_one_target_options_of
from reshard.core.options.fields import NAME_METAVAR, DaskScheduler, Ranks, parse_ranks
from reshard.core.options.validation import RequestModel, build_options
from reshard.core.request.changing import ChangeOptions, MatchingOptions
from reshard.core.request.reading import FileChoice, SourceOptions, SourceSignature, check_recovers
from reshard.core.request.target import TargetFiles, TargetLayoutOptions, TargetPlace
from reshard.core.text.options import option


class FlowOptions(RequestModel):
    """What only flows of Prefect can use."""

    dask_scheduler: DaskScheduler = Field(
        default="",
        description="What writes the ranks: tcp://HOST:PORT, the workers of that Dask cluster; local, processes on "
        "this machine. Empty: threads of the run's own process.",
    )
    concurrency_limit: Annotated[str, NAME_METAVAR] = Field(
        default="",
        description="Name of a Prefect global concurrency limit, whose slots all runs share: a rank starts when a slot "
        "is free. Empty: no limit.",
    )


class ConversionOptions(
    FlowOptions,
    MatchingOptions,
    TargetFiles,
    ChangeOptions,
    TargetLayoutOptions,
    TargetPlace,
    SourceSignature,
    SourceOptions,
):
    """Options of every conversion: of one checkpoint, or of the newest that training has saved.

    The bases stand from the last part to the first, as pydantic takes fields, so that each part follows what its checks
    look at.
    """

    @property
    def hashes_source(self) -> bool:
        """True if the SHA-256 of source files is recorded: asked for, or taken to check the signature of the source."""
        return super().hashes_source or (self.hashes_target and bool(self.require_signed_by))

    @property
    def layout_options(self) -> LayoutOptions:
        """What the target's layout says about its options."""
        return layout_options_of(self.layout)

    @property
    def reference(self) -> str:
        """URL of the checkpoint that the target is modelled on; empty if there is none."""
        return self.layout_options.reference(self)


@with_one_target_options_of(LAYOUT_OPTIONS)
class ConversionRequest(FileChoice, ConversionOptions):
    """Reshard a MindSpore checkpoint trained on M devices to run on N."""

    ranks: Ranks = Field(
        default="",
        description="Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other "
        "machines convert the rest. Empty: all.",
    )
    overwrite: bool = Field(
        default=False, description="Replace the checkpoint at the target, which is kept until the new one is complete."
    )

    _check_fault_ranks = field_validator("fault_ranks")(check_recovers)

    @property
    def target_directory(self) -> str:
        """URL of the directory with the target's files; of a Checkpoint 2.0, the iteration's, which must be known."""
        return self.layout_options.directory(self.target, self)

    def chosen_ranks(self, all_ranks: range) -> tuple[int, ...]:
        """Return the requested target ranks; raise InputError if the target does not have one of them."""
        if not self.ranks.strip():
            return tuple(all_ranks)
        chosen = parse_ranks(self.ranks)
        unknown = [rank for rank in chosen if rank not in all_ranks]
        if unknown:
            raise InputError(
                f"{option('ranks', self.ranks)}: the target has ranks {all_ranks.start} to {all_ranks.stop - 1}, "
                f"not {', '.join(map(str, unknown[:8]))}"
            )
        return chosen


def build_request(**options: object) -> ConversionRequest:
    """Build the request for a conversion from loose options; an InputError names each that is wrong."""
    return build_options(ConversionRequest, **options)
