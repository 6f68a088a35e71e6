"""The only list of layouts: a new one is a package beside this module, and a line here.

What can only be recognized, to be named in a refusal, is an entry of the table in `foreign`.
"""

from reshard.core.layouts.checkpoint2.source import Checkpoint2Source
from reshard.core.layouts.dcp.source import DcpSource
from reshard.core.layouts.ranks.source import RanksSource
from reshard.core.layouts.source_layout import SourceLayout
from reshard.core.layouts.unified.source import UnifiedSource

SOURCE_LAYOUTS: tuple[SourceLayout, ...] = (DcpSource(), Checkpoint2Source(), UnifiedSource(), RanksSource())
"""What can be read, in the order in which they are asked: those that are sure by their names first."""
