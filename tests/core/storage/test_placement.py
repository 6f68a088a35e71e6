"""Results are written apart from the source, and over nothing that exists."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import InputError, TargetError
from reshard.core.storage.placement import check_apart, check_new_file
from reshard.core.storage.urls import parse_url


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("/a", "/a", "is the source itself"),
        ("/a/rank_{rank}/x.ckpt", "/a/rank_0/x.ckpt", "can be a part of the source"),
        ("/a", "/a/b", "lies inside the source"),
        ("/a/b", "/a", "lies inside it, or in the directory where it is built"),
        ("/a.reshard-partial", "/a", "lies inside it, or in the directory where it is built"),
        ("/a", "/\udc80", "its name is not UTF-8 text"),
    ],
)
def test_targets_that_overlap_the_source(source: str, target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        check_apart(parse_url(source), parse_url(target))


@pytest.mark.parametrize("target", ["/b", "/ab", "memory://a"])
def test_targets_apart_from_the_source(target: str) -> None:
    check_apart(parse_url("/a"), parse_url(target))


def test_a_new_file(tmp_path: Path) -> None:
    location, source = parse_url(str(tmp_path / "out")), parse_url(str(tmp_path / "source"))
    check_new_file(location, source, overwrite=False)
    (tmp_path / "out").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    check_new_file(location, source, overwrite=True)
    with pytest.raises(InputError, match="out: already exists"):
        check_new_file(location, source, overwrite=False)
    with pytest.raises(InputError, match="is a directory; name the file to be written"):
        check_new_file(parse_url(str(tmp_path / "folder")), source, overwrite=True)


@pytest.mark.parametrize(
    ("source", "final", "reason"),
    [
        ("/a/src", "/a/src", "is the source itself"),
        ("/a/src", "/a/src/out", "lies inside the source"),
        ("/a/src", "/a", "lies inside it"),
        ("memory://a/src", "memory://a/src/out", "lies inside the source"),
        ("s3://bucket", "s3://bucket/out", "lies inside the source"),
    ],
)
def test_source_and_target_inside_each_other(source: str, final: str, reason: str) -> None:
    with pytest.raises(TargetError, match=reason):
        check_apart(parse_url(source), parse_url(final))


@pytest.mark.parametrize(
    ("source", "final"),
    [("/a/src", "/a/src2"), ("/a/src", "/a/out"), ("memory://a/src", "/a/src"), ("/bucket/src", "s3://bucket/src")],
)
def test_source_and_target_apart(source: str, final: str) -> None:
    check_apart(parse_url(source), parse_url(final))


@pytest.mark.parametrize(
    ("final", "message"),
    [
        ("/a/ckpt_3", r"the source /a/ckpt_\{rank\}/net\{rank\}-10_5.ckpt lies inside it"),
        ("/a", "lies inside it"),
        ("/", "lies inside it"),
        ("/a/ckpt_3/out", r"lies inside the source /a/ckpt_\{rank\}"),
        ("/a/ckpt_3/net3-10_5.ckpt", r"can be a part of the source /a/ckpt_\{rank\}"),
        ("/a/ckpt_3/net4-10_5.ckpt", "lies inside the source"),
        ("/a/ckpt_3/net3-10_5.ckpt/out", "lies inside the source"),
    ],
)
def test_a_target_that_the_pattern_of_the_source_takes(final: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        check_apart(parse_url("/a/ckpt_{rank}/net{rank}-10_5.ckpt"), parse_url(final))


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/out"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_03"),
        ("/a/ckpt_{rank}/net{rank}-10_5.ckpt", "/a/ckpt_3x/out"),
        ("/a/ckpt_{rank}", "/a/out"),
        ("/a/net_{rank}.ckpt", "/a/out"),
        ("s3://bucket/ckpt_{rank}", "s3://bucket/out"),
        ("memory://a/{rank}_of_{rank}", "memory://a/3_of_4"),
    ],
)
def test_a_target_beside_what_the_pattern_of_the_source_takes(source: str, final: str) -> None:
    check_apart(parse_url(source), parse_url(final))


@given(st.data())
def test_a_target_apart_takes_nothing_of_a_pattern(data: st.DataObject) -> None:
    """What the target's names can hold, and what a pattern finds, have no path in common, whatever the ranks."""
    part = st.sampled_from(["{rank}", "a", "a{rank}", "{rank}_{rank}", "b"])
    pattern = data.draw(st.lists(part, min_size=1, max_size=3).filter(lambda parts: "{rank}" in "".join(parts)))
    names = [
        each.replace("{rank}", number) for each in ("{rank}", "a", "a{rank}", "{rank}_{rank}", "b") for number in "01"
    ]
    target = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    taken = [[each.replace("{rank}", rank) for each in pattern] for rank in "01"]
    folders = [path[: 1 + next(place for place, each in enumerate(pattern) if "{rank}" in each)] for path in taken]
    meets = any(path[: len(target)] == target for path in taken) or any(
        target[: len(path)] == path for path in (*taken, *folders)
    )
    source, final = (parse_url("/".join(["/root", *parts])) for parts in (pattern, target))
    if meets:
        with pytest.raises(TargetError):
            check_apart(source, final)
    else:
        check_apart(source, final)
