"""`merge_pipeline_strategys` and `restore_group_info_list`."""

import os
from glob import escape, glob

from google.protobuf.message import DecodeError

from reshard.core.errors import StrategyError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.mindspore_api.arguments import check_type
from reshard.core.mindspore_api.failures import reading, writing
from reshard.core.mindspore_api.paths import checked_directory, make_directory
from reshard.core.runtime.metadata import check_metadata, protobuf_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategies, write_strategy
from reshard.core.strategy.groups import MAX_FILE_BYTES
from reshard.core.strategy.strategy_pb2 import ParallelGroupMap

_STAGE_KEY = b"\x08"
"""The first byte of a strategy file, which no group info file has: field 1 as a number."""


def merge_pipeline_strategys(src_strategy_dirs: str, dst_strategy_file: str) -> None:
    """Merge the strategy files (`*.ckpt` or `*.json`) of a job's pipeline stages into one, replacing what is there.

    Raises:
        NotADirectoryError: `src_strategy_dirs` is not a directory.
        ValueError: the files are not strategies, of both kinds, contradict each other, or a stage is missing.
        TypeError: an argument is not a string.
        OSError: the merged file cannot be written.
    """
    check_type("src_strategy_dirs", src_strategy_dirs, str)
    check_type("dst_strategy_file", dst_strategy_file, str)
    target = os.path.abspath(dst_strategy_file)
    make_directory(checked_directory("dst_strategy_file", os.path.dirname(target)))
    if not os.path.isdir(src_strategy_dirs):
        raise NotADirectoryError(f"'src_strategy_dirs' is not a directory: {src_strategy_dirs}")
    source = os.path.abspath(src_strategy_dirs)
    found = [path for kind in ("ckpt", "json") for path in sorted(glob(f"{escape(source)}/*.{kind}"))]
    files = [path for path in found if os.path.realpath(path) != os.path.realpath(target)]
    if not files:
        raise ValueError(f"{source}: holds no strategy files, whose names end in .ckpt or .json")
    with reading():
        if len(files) < len(found):
            _check_not_a_stages_own(target)
        merged = read_strategies([parse_url(path) for path in files], source)
    with writing():
        write_strategy(merged, target)


def _check_not_a_stages_own(target: str) -> None:
    try:
        found = read_any_strategy(target)
    except StrategyError:
        return  # replacing an unusable file loses nothing
    if not found.merged:
        raise StrategyError(f"{target}: is one of the stages' own files; name another one for the merged strategy")


def restore_group_info_list(group_info_file_name: str) -> list[int]:
    """Return the ranks from whose checkpoints a rank may be restored, from its group info file.

    Raises:
        TypeError: `group_info_file_name` is not a string.
        ValueError: there is no such file, or it is empty, damaged, or something else.
    """
    check_type("group_info_file_name", group_info_file_name, str)
    if not os.path.isfile(group_info_file_name):
        raise ValueError(f"there is no such group info file: {group_info_file_name}")
    with open(group_info_file_name, "rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{group_info_file_name}: has more than {MAX_FILE_BYTES} bytes: not a group info file")
    with reading():
        check_metadata(protobuf_bytes(content), group_info_file_name)
    message = ParallelGroupMap()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"{group_info_file_name}: is not a group info file: damaged, or another kind") from error
    if not content or not message.IsInitialized():
        what = "is incomplete" if content else "is empty"
        raise ValueError(f"{group_info_file_name}: {what}, and names no ranks to restore from")
    if content.startswith(_STAGE_KEY):
        # else its texts would be read as ranks
        raise ValueError(f"{group_info_file_name}: is a strategy file, not a group info file")
    return list(message.ckpt_restore_rank_list.dim)
