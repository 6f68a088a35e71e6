"""Parts on an object store made one checkpoint there."""

from pathlib import Path

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.signing.verifier import parse_verifier
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import CONVERSIONS, read_tree
from tests.support.joining import join_parts
from tests.support.s3_client import s3_client
from tests.support.signed_sources import Keys
from tests.support.stores import BUCKET, Store, unfinished_uploads

CASE = CONVERSIONS / "case_7010"


def test_what_a_killed_run_began_to_send_is_given_up(store: Store, tmp_path: Path) -> None:
    parts = [store.url(f"part{stage}") for stage in (0, 1)]
    for stage, part in enumerate(parts):
        convert(
            build_request(
                source=str(CASE / "src"),
                target=part,
                sha256="target",
                source_strategy=str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
                target_strategy=str(CASE / "dst_strategy.ckpt"),
            )
        )
    key = f"{store.prefix}/joined/rank_1/checkpoint_1_part0.ckpt"
    s3_client(store.server.url).create_multipart_upload(Bucket=BUCKET, Key=key)
    assert unfinished_uploads(store) == [key]
    keys = Keys(tmp_path)
    join_parts(parts, store.url("joined"), sign=keys.private)
    assert unfinished_uploads(store) == []
    verifier = parse_verifier(keys.public.read_bytes(), "key")
    found = verify_target(store.url("joined"), VerifyLevel.CHECKSUM, provenance=True, signed_by=verifier)
    assert (found.problems, found.hashed) == ((), 4)
    assert found.notes == ()  # all parts are beside it
    write_bytes(parse_url(parts[1]).child(".reshard", "manifest.json"), b"{}")
    [problem] = verify_target(store.url("joined"), VerifyLevel.CHECKSUM, provenance=True).problems
    assert problem.startswith(f"{parts[1]}/.reshard/manifest.json: has 2 bytes, and had ")
    strategy = str(CASE / "dst_strategy.ckpt")
    again = tmp_path / "again"
    convert(
        build_request(source=store.url("joined"), target=str(again), source_strategy=strategy, target_strategy=strategy)
    )
    assert read_tree(again) == read_tree(CASE / "want")
