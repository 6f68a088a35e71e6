"""Copies files within one storage, without their bytes passing through this process where possible."""

import shutil

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.local_files import check_regular
from reshard.core.storage.atomic_rename import flush_to_disk, open_temporary, rename_into_place, unlink_if_exists
from reshard.core.storage.azure import await_copy, is_azure
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.listing import file_info
from reshard.core.storage.transfers import requested
from reshard.core.storage.uploads import Upload, takes_parts
from reshard.core.storage.urls import Location
from reshard.core.storage.write_guard import check_claim
from reshard.core.storage.writing import discard


def copy_file(source: Location, target: Location) -> None:
    """Copy a file within one storage; the copy appears only when it is whole.

    Raises:
        StorageError: the file cannot be copied.
    """
    action = f"copy {source} to it"
    if not target.is_local:
        check_claim()
        _copy_remote(source, target, action)
        return
    with mapped_errors(target, action):
        check_regular(source.path)  # a device would be copied without end
        temporary, locked = open_temporary(target)
        with locked:
            try:
                shutil.copyfile(source.path, temporary)
                flush_to_disk(temporary)
                check_claim()
                rename_into_place(temporary, target.path)
            except BaseException:
                unlink_if_exists(temporary)
                raise


def _copy_remote(source: Location, target: Location, action: str) -> None:
    if not takes_parts(target):
        requested(target, action, lambda: target.fs.cp_file(source.path, target.path))
        if is_azure(type(target.fs)):
            requested(target, action, lambda: await_copy(target.fs, target.path))
        return
    # s3fs would copy a large file part by part, begin again at the first one if one fails, and leave parts behind
    upload = Upload(target, UploadBuffers())
    try:
        upload.copy(source, file_info(source, action)["size"], action)
    except BaseException:
        discard(upload, target)
        raise
