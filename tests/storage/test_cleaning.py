"""What `clean` says of an object store's leftovers."""

from reshard.core.conversion.convert import convert
from reshard.core.storage.publishing import STATE_DIRECTORY, WITHDRAWN_NAME
from reshard.core.target.cleaning import clean
from reshard.core.target.leftovers import LeftoverKind
from tests.support.checkpoints import case
from tests.support.s3_client import s3_client
from tests.support.stores import BUCKET, Store


def test_a_single_object_is_counted_with_its_size(store: Store) -> None:
    url = store.url("marked")
    convert(case(7010).request(url))
    key = f"{store.prefix}/marked/{STATE_DIRECTORY}/{WITHDRAWN_NAME}"
    s3_client(store.server.url).put_object(Bucket=BUCKET, Key=key, Body=b"mark")
    [left] = clean(url).found
    assert (left.kind, left.files, left.size_bytes) == (LeftoverKind.TEMPORARY, 1, 4)
    assert left.changed is not None
