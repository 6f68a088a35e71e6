"""Documents that declare changes."""

import json
from pathlib import Path

import pytest

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.changes.changes_file import parse_changes, read_changes
from reshard.core.errors import InputError, StorageError

DOCUMENT = {
    "select": "weights-only",
    "include": ["a*"],
    "exclude": ["b*"],
    "split": [{"parameters": r"(.*)\.qkv", "into": [r"\1.q", r"\1.k", r"\1.v"], "parts": [4, 1, 1], "groups": 2}],
    "join": [{"parameters": ["gate", "up"], "into": "gate_up", "axis": 1}],
    "transpose": [{"parameters": "*.t", "axes": [1, 0]}],
    "rename": [{"name": "a", "to": "b"}, {"pattern": "x(.*)", "to": r"y\1"}],
    "cast": [{"parameters": "*", "dtype": "bfloat16"}],
    "cast_overflow": "allow",
}


def test_yaml_and_json_say_the_same() -> None:
    as_json = parse_changes(json.dumps(DOCUMENT).encode(), "changes.json")
    assert parse_changes(json.dumps(DOCUMENT).encode(), "changes.yaml") == as_json
    assert as_json.split[0].shares == (4, 1, 1)
    for nothing in (b"", b"# nothing yet\n", b"{}"):
        assert parse_changes(nothing, "changes.yaml") == NO_CHANGES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"split: [", "not a readable document of changes: while parsing a flow node"),
        (b"exclude: [a]\nexclude: [b]", "'exclude' is there twice"),
        (b"exclude: a", "changes.yaml: exclude: must be a list, between [ and ]"),
        (b"transpose: [a]", "changes.yaml: transpose[0]: must be a mapping of a rule's fields"),
        (b"rename: [{name: a}]", "changes.yaml: rename[0].to: is missing"),
        (rb'rename: [{pattern: "\d", to: a}]', "expressions between 'single quotes'"),
        (b"rename: [{name: a, to: b, to: c}]", "'to' is there twice"),
        (b"!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        (b"\xff\xfe", "'utf-8' codec can't decode"),
        (b"[" * 50_000, "not a readable document of changes: "),
        (b"- a", "it must be a mapping, such as 'exclude: [adam_*]'"),
        (b"text", "it must be a mapping"),
        (b"renames: []", "changes.yaml: renames: there is no such field"),
        (b"select: weights", "changes.yaml: select: must be 'all' or 'weights-only'"),
        (b"rename: [{name: 5, to: a}]", "changes.yaml: rename[0].name: must be a text"),
        (b"rename: [{pattern: '(.)', to: '\\2'}]", r"changes.yaml: rename[0]: '\2' does not go with the regular"),
        (b"split: [{parameters: '(', into: [a, b]}]", "changes.yaml: split[0].parameters: '(' is not a regular expr"),
        (b"cast: [{parameters: a, dtype: int4}]\njoin: 3", "changes.yaml: cast[0].dtype: unsupported dtype 'int4'"),
        (b"cast: [{parameters: a, dtype: int4}]\njoin: 3", "changes.yaml: join: must be a list, between [ and ]"),
        (b"".join(b"field%d: 1\n" % number for number in range(30)), "changes.yaml: and 10 more"),
        (
            b"cast: [" + b"3," * 100_000 + b"]",
            "changes.yaml: cast[0]: must be a mapping of a rule's fields, such as {parameters: …}",
        ),
        (b"exclude: !!int ''", "not a readable document of changes: string index out of range"),
        (b"exclude: !!bool maybe", "not a readable document of changes: 'maybe'"),
        (b"exclude: !!timestamp now", "not a readable document of changes: 'NoneType'"),
        (b"transpose: [{parameters: a, axes: [true, false]}]", "transpose[0].axes[0]: must be a valid integer"),
        (b"split: [{parameters: a, into: [b, c], axis: 0x" + b"9" * 9999 + b"}]", "split[0].axis: must be"),
        (b"rename: [{pattern: '(?x)(.) # one', to: '\\2'}]", r"rename[0]: '\2' does not go with the regular"),
        (b"join: [{parameters: ['(?P<a>.)q', '(.)k'], into: '\\g<a>'}]", r"join[0]: '\g<a>' does not go with the reg"),
    ],
)
def test_documents_that_are_not_understood(text: bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_changes(text, "changes.yaml")
    assert message in str(error.value)
    assert str(error.value).startswith("changes.yaml: ")


def repeated(first: str, line: str, last: str) -> bytes:
    """Twelve lines of which each repeats the one before nine times."""
    lines = [line.format(number, ", ".join([f"*a{number - 1}"] * 9)) for number in range(1, 13)]
    return "\n".join([f"a0: &a0 {first}", *lines, last, ""]).encode()


@pytest.mark.parametrize(
    "text",
    [
        repeated("[x]", "a{0}: &a{0} [{1}]", "select: *a12"),
        repeated("[x]", "a{0}: &a{0} [{1}]", "? *a12\n: 1"),
        repeated("{include: [x]}", "a{0}: &a{0} {{<<: [{1}]}}", "<<: *a12"),
        b"include: &a [*a]",
    ],
    ids=["values", "a name", "merged", "itself"],
)
def test_a_few_lines_that_stand_for_billions(text: bytes) -> None:
    with pytest.raises(InputError, match="it has more than 1048576 values, with what its aliases repeat"):
        parse_changes(text, "changes.yaml")


def test_aliases_that_repeat_little_are_understood() -> None:
    text = b"cast: [&half {parameters: a, dtype: float16}, {<<: *half, parameters: b}]"
    assert [(rule.parameters, rule.dtype) for rule in parse_changes(text, "changes.yaml").cast] == [
        ("a", "float16"),
        ("b", "float16"),
    ]


def test_backslashes_of_json_are_explained() -> None:
    with pytest.raises(InputError, match=r"Invalid \\escape.*: a backslash is written \\\\ in JSON"):
        parse_changes(rb'{"rename": [{"pattern": "(\d)", "to": "a"}]}', "changes.json")


def test_json_names_what_is_there_twice() -> None:
    with pytest.raises(InputError, match=r"changes\.json: not a readable document of changes: 'cast' is there twice"):
        parse_changes(b'{"cast": [], "cast": []}', "changes.json")


def test_a_document_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises((InputError, StorageError), match=r"nowhere\.yaml"):
        read_changes(str(tmp_path / "nowhere.yaml"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises((InputError, StorageError), match=r"large\.yaml"):
        read_changes(str(tmp_path / "large.yaml"))
