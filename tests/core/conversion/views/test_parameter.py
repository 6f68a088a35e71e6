"""The reads of a parameter name the bytes that fill it."""

import math

import numpy as np
import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.views.parameter import describe_reads
from tests.support.checkpoints import case, read_ckpt


@pytest.mark.parametrize("number", [7001, 7005, 7010, 7018])
def test_reads_name_the_bytes_that_fill_the_shard(number: int) -> None:
    """Every read, carried out by hand from the boxes and offsets that are shown, gives the right shard."""
    conversion = case(number)
    plan = make_plan(conversion.request("memory://nowhere"))
    sources = {str(path): (path.read_bytes(), read_ckpt(path)) for path in conversion.directory.glob("src/*/*")}
    for rank, contents in conversion.want.items():
        for name, (_, shape, want) in contents.items():
            itemsize = len(want) // math.prod(shape)
            shard = np.zeros((*shape, itemsize), np.uint8)
            for read in describe_reads(plan, rank, name)["reads"]:
                data, source = sources[read["source_file"]]
                whole = np.frombuffer(source[name][2], np.uint8).reshape(*source[name][1], itemsize)
                box = whole[box_index(read["source_box"])]
                shard[box_index(read["target_box"])] = box
                first, end = read["file_offsets"]
                run_bytes = read["size_bytes"] // read["runs"]
                assert data[first : first + run_bytes] == box.tobytes()[:run_bytes]
                assert data[end - run_bytes : end] == box.tobytes()[-run_bytes:]
                assert (end - first == box.nbytes) == (read["runs"] == 1)
            assert shard.tobytes() == want, (rank, name)


def box_index(text: str) -> tuple[slice, ...]:
    parts = [part.split(":") for part in text.strip("[]").split(", ") if part]
    return tuple(slice(int(start), int(stop)) for start, stop in parts)
