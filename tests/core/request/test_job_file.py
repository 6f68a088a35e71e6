"""Requests as documents: written and read again they are the same."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.job_file import dump_job, parse_job
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.planning import PlanRequest
from reshard.core.request.source import SourceRequest
from reshard.core.request.verification import VerificationRequest

_ODD = st.sampled_from(
    [
        "10_5",
        "yes",
        "no",
        "null",
        "~",
        "0x1f",
        "1e3",
        "12:30:00",
        "2026-11-22",
        "- a",
        "a: b",
        "#c",
        "'",
        '"',
        "*",
    ]
)
_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@:?#;&%"), min_size=1) | _ODD
_LISTS = st.lists(_NAMES, max_size=3)
_OPTIONS = st.fixed_dictionaries(
    {"source": _NAMES, "target": _NAMES},
    optional={
        "source_strategy": _NAMES,
        "source_prefix": _NAMES,
        "root": _NAMES,
        "include": _LISTS,
        "allow_missing": _LISTS,
        "rename": st.lists(st.sampled_from(["a=b", r"re:layers\.(\d+)=h.\1"]), max_size=2),
        "cast": st.just(["*=bfloat16"]),
        "append_info": st.just(["epoch_num=5", "version=text:2.0"]),
        "step": st.sampled_from(["10_5", "0_0_breakpoint", ""]),
        "ranks": st.sampled_from(["0", "0-3,7", "007"]),
        "workers": st.integers(0, 1024),
        "memory_limit": st.sampled_from(["16MiB", "2GiB"]),
        "check_crc": st.booleans(),
        "overwrite": st.booleans(),
        "integrated_save": st.sampled_from(["auto", "yes", "no"]),
        "verify": st.sampled_from(["none", "content"]),
        "shared_parameters": st.sampled_from(["first", "0", "12"]),
        "decrypt_key": st.just("env:KEY"),
    },
)


@given(_OPTIONS)
def test_what_is_written_is_read_as_the_same_request(options: dict[str, Any]) -> None:
    request = build_options(ConversionRequest, **options)
    text = dump_job(request)
    assert build_options(ConversionRequest, **parse_job(text.encode(), "job.yaml", ConversionRequest)) == request
    assert build_options(ConversionRequest, **yaml.safe_load(text)) == request
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("request_", "document"),
    [
        (PlanRequest(source="a"), "source: a\n"),
        (ConversionRequest(source="a", target="b", check_crc=True), "source: a\ntarget: b\n"),
        (
            ConversionRequest(source="a", target="b", step="10_5", include=["x*"], verify="content"),  # type: ignore[arg-type]
            "source: a\ntarget: b\ninclude:\n- x*\nverify: content\nstep: '10_5'\n",
        ),
        (LatestConversionRequest(source="a", target="b", dry_run=True), "source: a\ntarget: b\ndry_run: true\n"),
        (ComparisonRequest(a="x", b="y"), "a: x\nb: y\n"),
        (SourceRequest(source="a", recover=True, fault_ranks="3"), "source: a\nrecover: true\nfault_ranks: '3'\n"),
        (VerificationRequest(target="b"), "target: b\n"),
    ],
)
def test_only_what_differs_from_the_defaults_is_written(request_: BaseModel, document: str) -> None:
    assert dump_job(request_) == document
    assert build_options(type(request_), **parse_job(document.encode(), "x.yaml", type(request_))) == request_


def test_plain_texts_of_yaml_are_read_as_they_are_written() -> None:
    document = b"source: 007\nstep: 10_5\nranks: 3\nintegrated_save: yes\nworkers: 4\ncheck_crc: off\ninclude: [1, no]"
    fields = parse_job(document, "j.yaml", PlanRequest)
    request = build_options(PlanRequest, **fields)
    assert (request.source, request.step, request.ranks, request.integrated_save) == ("007", "10_5", "3", "yes")
    assert (request.workers, request.check_crc, request.include) == (4, False, ["1", "no"])


def test_a_field_without_a_value_has_its_default() -> None:
    assert parse_job(b"source: a\ntarget_strategy:\nstep: null\nprefix: ''", "j.yaml", PlanRequest) == {
        "source": "a",
        "prefix": "",
    }
    assert parse_job(b'{"source": "a", "step": null}', "j.json", PlanRequest) == {"source": "a"}
    assert parse_job(b"", "j.yaml", PlanRequest) == {}


def test_fields_of_other_commands_are_passed_over_if_they_may_be_there() -> None:
    document = b"source: a\ntarget: b\nverify: none\nfault_ranks: 3\n"
    assert parse_job(document, "j.yaml", SourceRequest, ConversionRequest.model_fields) == {
        "source": "a",
        "fault_ranks": "3",
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"wrokers: 3\nnone: 1", "wrokers: there is no such field; did you mean workers?\nj.yaml: none: there is no "),
        (b"source-strategy: s", "j.yaml: source-strategy: there is no such field; did you mean source_strategy?"),
        (b"- source", "j.yaml: not a document of options: it must be a mapping, such as 'source: checkpoint'"),
        (b"source: a\nsource: b", "j.yaml: not a readable document of options: 'source' is there twice"),
        (b"source: [", "j.yaml: not a readable document of options: while parsing"),
        (b"source: \xff", "j.yaml: not a readable document of options: 'utf-8' codec can't decode"),
        (b"<<: {source: a}", "j.yaml: <<: there is no such field"),
        (b"a: &a [x, x]\nb: &b [*a, *a]\n" + b"".join(b"%c: &%c [%s]\n" % (c, c, b", ".join([b"*%c" % (c - 1)] * 9))
         for c in range(ord("c"), ord("z"))), "it has more than 1048576 values, with what its aliases repeat"),
        (b"include: &a [*a]", "more than 1048576 values"),
        (b"x" * (2**20 + 1), "j.yaml: has more than 1048576 bytes, the limit for such a file"),
    ],
)  # fmt: skip
def test_what_is_refused(document: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_job(document, "j.yaml", ConversionRequest)
    assert message in str(caught.value)
