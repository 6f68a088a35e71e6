"""Documents of declared changes: each ends in a refusal, or in a plan for a small checkpoint."""

import json
from random import Random

from reshard.core.changes.changes_file import parse_changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.dtypes import dtype_from_torch
from reshard.core.tensor.layout import ParameterLayout
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser
from tests.support.plans import FLOAT, entry, make_catalog, make_strategy, plan_of

_LARGEST_BYTES = 2**16
"""Each of up to thousands of steps takes a millisecond."""
_MOST_YAML_BYTES = 2**15
_ROWS = ParameterLayout((2,), ((0,), ()), nested=True)
_SHAPES = {
    **{f"layers.{layer}.w{which}": (8, 6) for layer in range(3) for which in "qkv"},
    "layers.0.experts": (8, 4),
    "head": (8, 6),
    "adam_m.head": (8, 6),
}


_QUANTIZED = {"fp8": dtype_from_torch("float8_e4m3fn"), "fp8_scale_inv": FLOAT}


def _catalog(quantized: bool) -> CheckpointCatalog:
    shards = [entry(name, (rows // 2, columns), FLOAT) for name, (rows, columns) in _SHAPES.items()]
    if quantized:  # which no `.ckpt` can hold, unless a step dequantizes it
        shards += [entry(name, (2, 4), dtype) for name, dtype in _QUANTIZED.items()]
    return make_catalog({rank: [*shards, entry("step", ())] for rank in range(2)})


_CATALOGS = {quantized: _catalog(quantized) for quantized in (False, True)}
_SOURCE = make_strategy(dict.fromkeys((*_SHAPES, *_QUANTIZED), _ROWS))


def _documents() -> list[bytes]:
    query_key_value = ["layers.{i}.wq", "layers.{i}.wk", "layers.{i}.wv"]
    documents = [
        {"exclude": ["adam_*"], "rename": [{"pattern": "layers\\.(\\d+)\\.wq", "to": "h.\\1.q"}]},
        {
            "variables": {"layers": 3},
            "steps": [
                {"join": {"parameters": query_key_value, "into": "layers.{i}.qkv", "groups": 2}},
                {"split": {"parameters": "layers.{i}.qkv", "into": query_key_value, "parts": [8, 8, 8], "groups": 2}},
                {"stack": {"parameters": "layers.{i}.wq", "into": "wq", "count": "layers"}},
                {"transpose": {"parameters": "wq", "axes": [0, 2, 1]}},
                {"merge": {"parameters": "wq", "count": "layers"}},
            ],
        },
        {
            "steps": [
                {"divide": {"parameters": "layers.0.experts", "count": 4}},
                {"unstack": {"parameters": "layers.0.experts", "into": "layers.0.expert.{e}", "count": 4}},
                {"slice": {"parameters": "head", "start": 2, "stop": 6, "axis": 1}},
                {"repeat": {"parameters": "head", "to": "tail.{i}", "count": 3}},
                {"rename": {"parameters": "{x:*}.wk", "to": "{x}.key", "optional": True}},
                {"dequantize": {"parameters": "{x:*}", "scale": "{x}_scale_inv", "block": [1, 1]}},
                {"add": {"parameters": "tail.{i}", "number": 2}},
                {"zeros": {"parameters": "head", "to": "none", "axis": 1, "length": 40}},
            ]
        },
        {
            "split": [{"parameters": "(.*)wq", "into": ["\\1a", "\\1b"], "parts": [2, 6]}],
            "join": [{"parameters": ["(.*)wk", "(.*)wv"], "into": "\\1kv", "axis": 1}],
            "transpose": [{"parameters": "head"}],
            "cast": [{"parameters": "layers.*", "dtype": "bfloat16"}],
            "select": "weights-only",
        },
    ]
    return [json.dumps(document).encode() for document in documents]


def _other_steps(random: Random, data: bytes) -> bytes:
    """The steps of a document, or of another one, in another order; some of them are missing, some there twice."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    steps = document.get("steps") if isinstance(document, dict) else None
    if not isinstance(steps, list):
        return data
    others = [step for seed in map(json.loads, _documents()) for step in seed.get("steps", ())]
    chosen = random.choices([*steps, *others], k=random.randint(1, 8))
    return json.dumps(document | {"variables": {"layers": random.choice((1, 2, 3))}, "steps": chosen}).encode()


def _parse(data: bytes) -> ConversionPlan:
    data = data[:_LARGEST_BYTES]
    # PyYAML takes some microseconds for each byte
    is_yaml = len(data) < _MOST_YAML_BYTES and len(data) % 2
    declared = parse_changes(data, f"hostile_changes.{'yaml' if is_yaml else 'json'}")
    plan = plan_of(_CATALOGS[b"dequantize" in data], _SOURCE, None, changes=declared)
    for rank in plan.target_ranks:
        plan.rank_plan(rank)
    return plan


DOCUMENT = Parser("changes", _documents, _parse, (damaged_json, _other_steps), memory_factor=1000)
"""A value of YAML takes about 2,000 bytes."""
