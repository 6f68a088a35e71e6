"""What programs and job files may give for options: the requests that come of it hold texts, as from a command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import InputError
from reshard.core.options.fields import parse_ranks, parse_size
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.job_file import dump_job, parse_job
from reshard.core.strategy.integrated_save import IntegratedSave
from tests.support.requests import refusal, request

CHECKPOINT2 = {"layout": "checkpoint2"}
PRESET = {"preset": "qwen3"}
RECOVER = {"recover": True}


@pytest.mark.parametrize(
    ("name", "given", "held", "others"),
    [
        ("source", Path("/a/b"), "/a/b", {}),
        ("target_strategy", Path("/a/b"), "/a/b", {}),
        ("changes", Path("c.yaml"), "c.yaml", {}),
        ("preset", Path("/own.yaml"), "/own.yaml", {}),
        ("training_config", Path("/own.yaml"), "/own.yaml", PRESET),
        ("step", 3, "3", {}),
        ("step", np.int64(40), "40", {}),
        ("iteration", 40, "40", CHECKPOINT2),
        ("shared_parameters", 1, "1", {}),
        ("memory_limit", 2 << 30, "2GiB", {}),
        ("memory_limit", 10**9, "1GB", {}),
        ("memory_limit", (2 << 30) + 1, "2147483649B", {}),
        ("max_shard_size", np.int64(512 << 20), "512MiB", {"layout": "unified"}),
        ("ranks", range(512), "0-511", {}),
        ("ranks", 5, "5", {}),
        ("ranks", [7, 3, 3], "3,7", {}),
        ("ranks", {1, 2}, "1-2", {}),
        ("ranks", np.arange(4), "0-3", {}),
        ("ranks", ["0-3", 7], "0-3,7", {}),
        ("ranks", (rank for rank in (1, 3)), "1,3", {}),
        ("fault_ranks", [3, 7], "3,7", RECOVER),
        ("fault_ranks", [], "", RECOVER),
        ("include", "model.*", ["model.*"], {}),
        ("exclude", ("a", "b"), ["a", "b"], {}),
        ("allow_missing", "adam_*", ["adam_*"], {}),
        ("allow_model", "kimi_k2", ["kimi_k2"], PRESET),
        ("cast", "*=bfloat16", ["*=bfloat16"], {}),
        ("cast", {"*": "bfloat16"}, ["*=bfloat16"], {}),
        ("cast", {"norm.[=]": "float32", "*": "float16"}, ["norm.[=]=float32", "*=float16"], {}),
        ("rename", {"old": "new"}, ["old=new"], {}),
        ("rename", {r"re:(?=a)(.*)": r"b.\1"}, [r"re:(?=a)(.*)=b.\1"], {}),
        ("switch", {"n": 3, "fused": True}, ["n=3", "fused=true"], PRESET),
        ("append_info", {"epoch_num": 5}, ["epoch_num=5"], {}),
        ("append_info", {"a": "5", "b": 0.5, "c": False, "d": "x=y"}, ["a=text:5", "b=0.5", "c=false", "d=x=y"], {}),
        ("append_info", {"a": np.float32(0.5), "b": np.int8(5)}, ["a=0.5", "b=5"], {}),
        ("common", {"loss_scale": 65536.0, "epoch_num": None}, ["loss_scale=65536.0", "epoch_num=null"], CHECKPOINT2),
        ("integrated_save", True, IntegratedSave.YES, {}),
        ("integrated_save", np.bool_(False), IntegratedSave.NO, {}),
        ("workers", np.int32(4), 4, {}),
    ],
)
def test_what_a_program_has_is_taken(name: str, given: object, held: object, others: dict[str, Any]) -> None:
    made = request(**{name: given}, **others)
    assert getattr(made, name) == held
    assert type(getattr(made, name)) is type(held)
    # what a request holds makes the same request
    assert ConversionRequest.model_validate_json(made.model_dump_json()) == made


def test_both_sides_of_a_comparison() -> None:
    made = ComparisonRequest.model_validate(
        {"a": Path("/a"), "b": Path("/b"), "step_a": 3, "memory_limit": 1 << 30, "integrated_save_b": True}
    )
    assert (made.a, made.step_a, made.memory_limit, made.integrated_save_b) == ("/a", "3", "1GiB", "yes")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": True}, "source True: must be a path or URL"),
        ({"step": 3.5}, "step 3.5: must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration"),
        ({"step": True}, "step True: must be EPOCH_STEP"),
        ({"step": -3}, "step -3: must be EPOCH_STEP"),
        ({"iteration": 4.0} | CHECKPOINT2, "iteration 4.0: must be the number of an iteration"),
        ({"shared_parameters": 1.0}, "shared_parameters 1.0: must be first, fail, or the number of a pipeline stage"),
        ({"memory_limit": -1}, "memory_limit -1: must be a size such as 512MiB or 2GiB"),
        ({"memory_limit": 0}, "memory_limit 0: must be at least 16MiB"),
        ({"memory_limit": True}, "memory_limit True: must be a size such as 512MiB or 2GiB"),
        ({"memory_limit": 2.5e9}, "memory_limit 2500000000.0: must be a size such as 512MiB or 2GiB"),
        ({"bandwidth_limit": 10**6}, "bandwidth_limit 1000000: must be a text with its unit, such as 10M"),
        ({"ranks": []}, "ranks: lists no ranks; leave it out to take all of them"),
        ({"ranks": range(0)}, "ranks range(0, 0): lists no ranks; leave it out to take all of them"),
        (
            {"ranks": np.array([], int)},
            "ranks array([], dtype=int64): lists no ranks; leave it out",
        ),
        ({"ranks": range(10**15)}, "ranks range(0, 1000000000000000): must be ranks such as 0-3,7"),
        ({"ranks": [1.5]}, "ranks: must be ranks such as 0-3,7"),
        ({"ranks": [True]}, "ranks: must be ranks such as 0-3,7"),
        ({"ranks": [-1]}, "ranks: must be ranks such as 0-3,7"),
        ({"ranks": b"\3"}, "ranks b'\\x03': must be ranks such as 0-3,7"),
        ({"ranks": {3: 4}}, "ranks {3: 4}: must be ranks such as 0-3,7"),
        ({"include": ""}, "include '': a pattern is empty"),
        ({"include": {"a": "b"}}, "include {'a': 'b'}: must be a list"),
        ({"include": Path("a")}, "include PosixPath('a'): must be a list"),
        ({"cast": {"*": 16}}, "cast {'*': 16}: the value of '*' must be a text, not 16"),
        ({"cast": {5: "float16"}}, "cast {5: 'float16'}: 5 and 'float16' cannot be told apart in '5=float16'"),
        ({"rename": {"re:a": "b=c"}}, "rename {'re:a': 'b=c'}: 're:a' and 'b=c' cannot be told apart in 're:a=b=c'"),
        ({"switch": {"n=3": 4}} | PRESET, "switch {'n=3': 4}: 'n=3' and '4' cannot be told apart in 'n=3=4'"),
        ({"switch": {"n": None}} | PRESET, "switch {'n': None}: the value of 'n' must be a text, a number, true or"),
        ({"append_info": {"a": None}}, "append_info {'a': None}: the value of 'a' must be a text, a number, true or"),
        ({"append_info": {"a": float("nan")}}, "append_info {'a': nan}: 'a': nan is not a finite Float32"),
        ({"common": {"loss_scale": True}} | CHECKPOINT2, "common {'loss_scale': True}: loss_scale is a number or null"),
        ({"workers": True}, "workers True: must be a whole number, not true or false"),
        ({"workers": np.True_}, f"workers {np.True_!r}: must be a whole number, not true or false"),
        ({"layout": "dcp", "shards": False}, "shards False: must be a whole number, not true or false"),
        ({"integrated_save": 1}, "integrated_save 1: must be 'auto', 'yes' or 'no'"),
    ],
)
def test_nonsense_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    assert refusal(**options).startswith(message)


@given(st.integers(16 * 2**20, 2**60))
def test_a_number_of_bytes_stays_exact(size_bytes: int) -> None:
    assert parse_size(request(memory_limit=size_bytes).memory_limit) == size_bytes


@given(st.sets(st.integers(0, 1000), min_size=1))
def test_ranks_stay_the_same(ranks: Iterable[int]) -> None:
    assert parse_ranks(request(ranks=ranks).ranks) == tuple(sorted(ranks))


def job(text: str, origin: str = "job.yaml") -> ConversionRequest:
    return request(**parse_job(text.encode(), origin, ConversionRequest))


def test_job_files_may_be_written_so() -> None:
    made = job(
        """
        step: 10_5
        ranks: [0-2, 7]
        include: model.*
        cast: {'*': bfloat16}
        rename: {a: 1.10}
        preset: qwen3
        switch: {n: 3, fused: yes}
        memory_limit: 2147483648
        integrated_save: yes
        """
    )
    assert made == request(
        step="10_5",
        ranks="0-2,7",
        include=["model.*"],
        cast=["*=bfloat16"],
        rename=["a=1.10"],
        preset="qwen3",
        switch=["n=3", "fused=yes"],
        memory_limit="2147483648",
        integrated_save="yes",
    )
    assert job(dump_job(made)) == made


def test_quotes_make_a_text_of_a_value_in_a_job_file() -> None:
    values = """
        append_info:
            bare: 5
            quoted: "5"
            decimal: .50
            word: on
            truth: true
    """
    held = ["bare=5", "quoted=text:5", "decimal=.50", "word=on", "truth=true"]
    assert job(values).append_info == held
    assert job('{"append_info": {"bare": 5, "quoted": "5"}}', "job.json").append_info == held[:2]


def test_null_is_a_number_of_common_json_only() -> None:
    assert job("layout: checkpoint2\ncommon: {epoch_num: null}").model_dump()["common"] == ["epoch_num=null"]
    with pytest.raises(Exception, match="the value of 'epoch_num' must be a text, a number, true or false, not None"):
        job("append_info: {epoch_num: null}")


def test_numpys_own_type_is_no_number() -> None:
    with pytest.raises(InputError, match=r"the value of '\*' must be a text, not dtype\('float32'\)"):
        request(cast={"*": np.dtype("float32")})
