"""Huawei's Object Storage Service, `obs://`: s3fs, with endpoint and keys from other places (see `obs_settings`)."""

from typing import Any

from s3fs import S3FileSystem

from reshard.core.storage.obs_settings import completed


class OBSFileSystem(S3FileSystem):  # type: ignore[misc]
    """`obs://bucket/key`; takes the options of s3fs."""

    protocol = ("obs",)

    def __init__(self, **options: Any) -> None:
        """Complete the options; no connection is made."""
        super().__init__(**completed(options))
