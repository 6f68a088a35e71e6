"""The documents of a `torch_dist` target.

Modules ask for an object each, of which nothing is known and nothing is needed: a list of None is what Megatron-Core's
own layers save. All are one archive in one file.
"""

import json

from reshard.core.files.torch_file_writing import plan_torch_file
from reshard.core.layouts.dcp.metadata_writing import build_metadata_of
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.documents import Document, Documents
from reshard.core.layouts.torch_dist.assignment import planned_stacking
from reshard.core.layouts.torch_dist.common import build_common
from reshard.core.layouts.torch_dist.names import BACKEND, COMMON_NAME, CONFIG_NAME, OBJECTS_NAME
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.slices import Extent

_CONFIG = {
    "sharded_backend": BACKEND[0],
    "sharded_backend_version": BACKEND[1],
    "common_backend": "torch",
    "common_backend_version": 1,
}


def build_torch_dist_documents(plan: ConversionPlan, target: TorchDistTarget) -> Documents:
    """Build the documents of a plan's target; the last one makes it complete."""
    stacking = planned_stacking(plan.match, target)
    stored = {each.name: stacking.place(each.name, each.shape) for each in plan.match.resharded}
    objects = Document(OBJECTS_NAME, _objects_file())
    place = OBJECTS_NAME, Extent(0, len(objects.data))
    metadata = build_metadata_of(plan, stored, {}, dict.fromkeys(stacking.objects(), place))
    return Documents(
        Document(DCP_METADATA_NAME, metadata),
        Document(COMMON_NAME, build_common(target, plan.match, stacking)),
        (objects, Document(CONFIG_NAME, json.dumps(_CONFIG).encode())),
    )


def _objects_file() -> bytes:
    segments = plan_torch_file([None], (), "archive").segments
    return b"".join(segment for segment in segments if isinstance(segment, bytes))
