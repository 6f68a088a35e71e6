"""Known shapes of whole tensors, to compare with those that a strategy makes of shards."""

from collections.abc import Mapping, Sequence

from reshard.core.errors import InputError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.plan.model import ParameterMatch
from reshard.core.plan.whole_shapes import wholes_of_shards
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.wording import listed
from reshard.core.source.findings import OWN_STRATEGY, Cause, Finding, findings_by_cause
from reshard.core.source.opening import open_source
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_JSON = ".json"
_INDEX = ".index.json"


def read_known_shapes(url: str) -> dict[str, Shape]:
    """Return the whole shapes that a JSON strategy or a checkpoint shows, by name.

    Raises:
        InputError: it cannot be read, or shows none.
        StorageError: a transient failure.
    """
    shapes = _of_strategy(url) if url.endswith(_JSON) and not url.endswith(_INDEX) else _of_checkpoint(url)
    if not shapes:
        raise InputError(
            f"{url}: shows no whole shapes; name a checkpoint of whole tensors, a DCP checkpoint, a Checkpoint 2.0, or "
            "a strategy in JSON"
        )
    return shapes


def compare_shapes(match: ParameterMatch, known: Mapping[str, Shape], url: str) -> tuple[list[Finding], Sequence[str]]:
    """Compare whole shapes with `known` ones; return contradictions, and the names of those that are confirmed.

    Raises:
        InputError: they have no name in common.
    """
    shapes = {parameter.name: parameter.shape for parameter in match.resharded}
    common = [name for name in shapes if name in known]
    if not common:
        raise InputError(
            f"{url}: has none of the parameters ({listed([*map(repr, shapes)], 3)}); if it calls them by Hugging "
            f"Face's names, add {option('preset')}"
        )
    differing = [name for name in common if shapes[name] != known[name]]
    cause = Cause(
        f"the strategy makes wholes of other shapes than {url} has",
        "the strategy shards them along another axis, or into other pieces, than the saving job did; or it is another "
        "size of the network",
        OWN_STRATEGY,
    )
    details = [f"{name!r} {list(shapes[name])}, not {list(known[name])}" for name in differing]
    findings = findings_by_cause("shapes", {cause: details}) if details else []
    return findings, [name for name in common if shapes[name] == known[name]]


def _of_strategy(url: str) -> dict[str, Shape]:
    stages = read_any_strategy(url).stages
    return {
        name: layout.tensor_shape
        for stage in stages
        for name, layout in stage.layouts.items()
        if layout.tensor_shape is not None
    }


def _of_checkpoint(url: str) -> dict[str, Shape]:
    source = open_source(SourceRequest(source=url, auto_strategy=False, check_crc=False))
    if source.strategy is None:
        return {name: entry.shape for index in source.catalog.indexes() for name, entry in index.entries.items()}
    wholes = wholes_of_shards(source.shards.by_name, integrated=False)
    return {name: whole.shape for name, whole in wholes.items() if whole.confirmed_by}
