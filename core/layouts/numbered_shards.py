"""Files that number themselves, `model-00001-of-00003.safetensors`, as Hugging Face's do.

Without an index they are one checkpoint if all are there.
"""

import re
from collections.abc import Collection
from itertools import islice

from reshard.core.errors import CatalogError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location

_OF_SEVERAL = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>\.(?:safetensors|bin))", re.ASCII | re.DOTALL
)
_MAX_LISTED = 6


class ShardName(Record):
    """The parsed name of one of several files in Hugging Face's scheme: `model.fp16-00001-of-00002.safetensors`."""

    stem: str
    number_text: str
    count_text: str
    suffix: str

    @property
    def number(self) -> int:
        """The number of the file, mostly from 1 on."""
        return int(self.number_text)

    @property
    def count(self) -> int:
        """The number of files of the set."""
        return int(self.count_text)

    def name_of(self, number: int) -> str:
        """The name of the file of another number; numbers and counts may have different zeros, as DeepSeek-V3's."""
        return f"{self.stem}-{number:0{len(self.number_text)}}-of-{self.count_text}{self.suffix}"


def parse_shard(name: str) -> ShardName | None:
    """Parse the name of one of several files; None for any other name."""
    match = _OF_SEVERAL.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return None
    return ShardName(match["stem"], match["number"], match["count"], match["suffix"])


def are_numbered_shards(root: Location, names: Collection[str], index_name: str) -> bool:
    """True if the checkpoint files of a directory without an index are one set that numbers itself, and is complete.

    `index_name` is the name that the index would have.

    Raises:
        CatalogError: some are of such a set, but files of it are missing, or there are others beside them.
    """
    shards = {name: shard for name in names if (shard := parse_shard(name)) is not None}
    if not shards:
        return False
    first = next(iter(shards.values()))
    of_set = {shard.number: name for name, shard in shards.items() if _is_of_set(shard, first)}
    strange = [name for name in names if name not in of_set.values()]
    if strange:
        one = next(iter(of_set.values()), first.name_of(first.number))
        raise CatalogError(
            f"{root}: has {one}, by its name one of {first.count} files, and beside it {listed(strange, _MAX_LISTED)}, "
            f"but no index that says which are the checkpoint ({index_name}): get that as well, or remove the others"
        )
    if len(of_set) < first.count:
        numbers = (number for number in range(1, first.count + 1) if number not in of_set)  # a name may say billions
        lacking = ", ".join(map(first.name_of, islice(numbers, _MAX_LISTED)))
        more = first.count - len(of_set) - _MAX_LISTED
        raise CatalogError(
            f"{root}: has {len(of_set)} of {first.count} files that number themselves, and no index ({index_name}); "
            f"missing: {lacking}{f' and {more} more' if more > 0 else ''}. Get them as well, or name the one file that "
            "is meant"
        )
    return True


def _is_of_set(shard: ShardName, first: ShardName) -> bool:
    sets = [(each.stem, each.count_text, each.suffix) for each in (shard, first)]
    return sets[0] == sets[1] and 1 <= shard.number <= shard.count
