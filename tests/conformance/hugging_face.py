"""Random tiny models that transformers makes, through MindFormers' names and random shardings, and back.

A case is made from its seed: a family, sizes, a dtype, and a job whose ranks get the model under MindFormers' names.
From these ranks a complete directory is made again, which transformers has to load, without a weight too many or too
few, into a model that gives the same logits, bit by bit. That the ranks hold what MindFormers makes of the same model,
and not only what leads back, is shown by tests/fixtures/model_families.
"""

import math
import random
import traceback
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from reshard import make_strategy
from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.conformance.mindspore_process import RefusalError, TransformersJudge
from tests.support.families import directory_contents
from tests.support.mindformers_rules import RULES

CASES_OF_EACH = 1
_MOE = {"num_experts_per_tok": 2}
_FAMILIES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "qwen3": ("qwen3", True, {}),
    "qwen3_moe": ("qwen3_moe", True, {**_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "deepseek3": ("deepseek_v3", False, {**_MOE, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}),
    "llama": ("llama", True, {}),
    "qwen2": ("qwen2", True, {}),
    "mixtral": ("mixtral", True, {**_MOE}),
    "glm4": ("glm4", True, {"attention_bias": True}),
    "qwen2_moe": ("qwen2_moe", True, {**_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "telechat3": ("llama", True, {}),
    "telechat3_moe": ("deepseek_v3", False, {**_MOE, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}),
}
"""Preset -> transformers' type, whether heads are grouped, fields of its configuration.

transformers has no TeleChat3, which has the names and the shapes of these.
"""
UNKNOWN = ("chatglm", "telechat2")
"""Presets of models that only the hub's own code has."""
_CUTS = {
    "legacy": ("*embedding_weight=0", "*.w[qkv].weight=0", "*.w_qkv.weight=0", "*.wo.weight=1", "*.w[123].weight=0",
               "*.l2q_*.weight=0", "*.lkv2kv_*.weight=0", "*.ffn.w[123]=0"),
    "mcore": ("*word_embeddings.weight=0", "*linear_qkv.weight=0", "*linear_proj.weight=1", "*linear_fc1.weight=0",
              "*linear_fc2.weight=1", "*experts.weight1=0", "*experts.weight2=0"),
}  # fmt: skip
_MLA = ("deepseek3", "telechat3_moe")
_LEGACY = ("llama", "qwen2", "mixtral", "qwen2_moe")
"""Presets of older names only."""


@dataclass(frozen=True)
class Case:
    """A model and a job.

    Attributes:
        preset: its family.
        config: fields of config.json.
        dtype: of its weights.
        switches: how MindFormers' ranks have it.
        data, model, stages: numbers of devices.
        optimizer: the optimizer is sharded as well.
    """

    seed: int
    preset: str
    config: dict[str, Any]
    dtype: str
    switches: tuple[str, ...]
    data: int
    model: int
    stages: int
    optimizer: bool

    @property
    def is_legacy(self) -> bool:
        """True if MindFormers' names are older ones."""
        return self.preset in _LEGACY or "names=legacy" in self.switches


def build_case(seed: int, preset: str) -> Case:
    """Return the case of a seed."""
    draw = random.Random(f"{seed} {preset}")
    kind, grouped, fields = _FAMILIES[preset]
    groups = draw.choice((1, 2, 4))
    heads = groups * draw.choice((1, 2, 3)) if grouped else 4
    config: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": 8 * draw.randint(4, 8),
        "hidden_size": 8 * draw.randint(2, 6),
        "intermediate_size": 8 * draw.randint(2, 6),
        "num_hidden_layers": draw.choice((2, 3, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": groups if grouped else heads,
        "max_position_embeddings": 64,
        "tie_word_embeddings": draw.random() < 0.3 and preset not in ("mixtral", "qwen2_moe"),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **fields,
    }
    if preset in (*_LEGACY, "telechat3"):  # their heads are parts of the hidden size
        config["hidden_size"] = heads * 8
    if preset not in ("qwen2", "mixtral", "qwen2_moe", "deepseek3", "telechat3_moe"):
        config["head_dim"] = 8
    experts = draw.choice((4, 12))  # as text, 10 comes before 2
    if preset == "mixtral":
        config["num_local_experts"] = experts
    if preset in ("qwen3_moe", "qwen2_moe", *_MLA):
        config |= {"moe_intermediate_size": 8 * draw.randint(1, 3)}
        config |= {"n_routed_experts" if preset in _MLA else "num_experts": experts}
    if preset == "qwen2_moe":
        config["shared_expert_intermediate_size"] = 8 * draw.randint(1, 3)
    if preset in _MLA:
        config |= {
            "q_lora_rank": draw.choice((24, None)),
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": draw.choice((8, 16)),
            "first_k_dense_replace": draw.choice((0, 1)),
        }
    switches = _switches(draw, preset)
    if config.get("q_lora_rank", 1) is None:
        # MindFormers' converters know them with one only
        switches = [each.replace("mla_qkv_concat=true", "mla_qkv_concat=false") for each in switches]
    if preset == "deepseek3" and "names=legacy" in switches:
        config["q_lora_rank"] = 24
    return Case(
        seed,
        preset,
        config,
        draw.choice(("float32", "bfloat16", "float16") if preset not in _MLA else ("float32", "bfloat16")),
        tuple(switches),
        data=draw.choice((1, 2)),
        model=draw.choice((2, 4)),
        stages=draw.choice((1, 2)),
        optimizer=draw.random() < 0.5,
    )


def _switches(draw: random.Random, preset: str) -> list[str]:
    """Every way in which MindFormers has the family."""
    names: dict[str, tuple[str, ...]] = {}
    if preset == "deepseek3" and draw.random() < 0.4:
        return ["names=legacy", f"use_gmm={draw.choice(('true', 'false'))}"]
    if preset == "telechat3" and draw.random() < 0.4:
        return ["names=legacy"]
    if preset in ("qwen3", "qwen3_moe", "telechat3", *_MLA):
        names["use_interleaved_weight_layout_mlp"] = ("true", "false")
    if preset in ("qwen3", "qwen3_moe", "telechat3"):
        names["use_contiguous_weight_layout_attention"] = ("true", "false")
    if preset in ("qwen3_moe", *_MLA):
        names["experts_axes"] = ("2", "3")
    if preset in _MLA:
        names["mla_qkv_concat"] = ("true", "false")
    if preset in _LEGACY:
        names["qkv_concat"] = ("true", "false")
        names["qkv_grouped"] = ("true", "false")
    if preset in ("qwen2", "qwen2_moe"):
        names["bias_groups"] = ("true", "false")
    if preset in ("mixtral", "qwen2_moe"):
        names["use_gmm"] = ("true", "false")
    return [f"{name}={draw.choice(values)}" for name, values in names.items()]


def check_hugging_face(first: int, directory: Path) -> list[str]:
    """What is not as it should be, of some models of each family."""
    problems = []
    directory.mkdir(parents=True, exist_ok=True)
    with TransformersJudge(directory / "transformers.log") as judge:
        for preset in _FAMILIES:
            for seed in range(first, first + CASES_OF_EACH):
                case = build_case(seed, preset)
                try:
                    found = _check(case, judge, directory / f"{preset}_{seed}")
                except (ReshardError, RefusalError) as error:
                    found = [f"{type(error).__name__}: {error}"]
                except Exception:
                    found = traceback.format_exc().splitlines()[-4:]
                problems += [f"{case}: {problem}" for problem in found]
    return problems


def _check(case: Case, judge: TransformersJudge, directory: Path) -> list[str]:
    directory.mkdir()
    model, whole, ranks, back = (directory / name for name in ("model", "whole", "ranks", "back"))
    judge.ask("make_model", directory=str(model), config=case.config, dtype=case.dtype, seed=case.seed)
    preset = {"preset": case.preset, "switch": list(case.switches), "allow_model": [case.config["model_type"]]}
    convert(build_request(source=str(model), target=str(whole), layout="unified", **preset))
    problems = _against_rules(case, model, whole)
    strategy = directory / "strategy.ckpt"
    make_strategy(
        str(strategy),
        like=str(whole),
        data_parallel=case.data,
        model_parallel=case.model,
        pipeline=case.stages,
        optimizer_parallel=case.optimizer,
        optimizer_threshold_bytes=0,
        cuts=_cuts(case, whole),
    )
    convert(build_request(source=str(model), target=str(ranks), target_strategy=str(strategy), **preset))
    known = {"source_strategy": str(strategy), "layout": "unified", "like": str(model), "max_shard_size": "50KB"}
    convert(build_request(source=str(ranks), target=str(back), verify="content", **known, **preset))
    problems += judge.ask("compare_models", directory=str(model), other=str(back), seed=case.seed)
    same = compare_checkpoints(build_comparison(a=str(ranks), b=str(model), strategy_a=str(strategy), **preset))
    return problems if same.same else [*problems, f"reshard diff: {same.verdict}"]


def _against_rules(case: Case, model: Path, whole: Path) -> list[str]:
    """What MindFormers' side has other than by its rules in numpy."""
    switches = {name: value == "true" for name, value in (each.split("=") for each in case.switches) if name != "names"}
    rules = RULES.get((case.preset, case.is_legacy))
    if rules is None:
        return []
    hf = {name: _array(entry) for name, entry in directory_contents(model).items()}
    expected = {name: array.tobytes() for name, array in rules(hf, case.config, **switches).items()}
    found = {name: entry[2] for name, entry in directory_contents(whole).items()}
    return [
        f"{name}: not as MindFormers' rules have it"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def _array(entry: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    """The bits of a tensor: numpy has no bfloat16 of its own."""
    _, shape, content = entry
    return np.frombuffer(content, f"u{len(content) // math.prod(shape)}").reshape(shape)


def _cuts(case: Case, whole: Path) -> list[str]:
    """The cuts whose patterns fit a parameter."""
    names = directory_contents(whole)
    cuts = _CUTS["legacy" if case.is_legacy else "mcore"]
    return [cut for cut in cuts if any(fnmatchcase(name, cut.rpartition("=")[0]) for name in names)]
