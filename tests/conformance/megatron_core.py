"""Random models that ranks of Megatron-Core save, converted by reshard, and loaded by ranks of other jobs.

A case is made from its seed: a model, the sizes of the job that saves it, those of the job that loads it, and the form
of either checkpoint. Whole, it has to be the model that Megatron makes on one rank, byte by byte. Each rank of the
other job has to load the slices that Megatron's own distributed checkpoint gives it. A model that transformers has,
too, has to give the same logits there.
"""

import random
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from reshard import make_strategy
from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from tests.conformance.dcp import TorchJudge
from tests.conformance.differences import differences
from tests.conformance.mindspore_process import MegatronJudge, RefusalError, TransformersJudge
from tests.conformance.seeded import check_seeds
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.families import directory_contents

CASES = 12
KINDS = ("megatron", "torch_dist")
"""Layouts that are read and written."""
PRESETS = ("qwen3", "qwen3_moe", "qwen2", "glm4_moe", "gpt_oss")
_RANKS = 4
_TOLERANCE = 1e-4
_CUTS = ("*word_embeddings.weight=0", "*linear_qkv.weight=0", "*linear_proj.weight=1", "*linear_fc2.weight=1")
_EXPERTS = {"experts": 4, "moe_ffn": 8, "ffn": 16}
_MLA = {"head_dim": None, "mla": {"q": 16, "kv": 8, "nope": 8, "rope": 4, "v": 8}}
_FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {},
    "biased": {"bias": True},
    "ungated": {"gated": False},
    "qwen2": {"qk_norm": False, "qkv_bias": True},
    "experts": _EXPERTS,
    "grouped": {**_EXPERTS, "grouped": True},
    "shared": {**_EXPERTS, "shared": 12, "expert_bias": True},
    "mixed": {**_EXPERTS, "shared": 12, "freq": True},
    "latent": _MLA,
    "deepseek": {**_MLA, **_EXPERTS, "shared": 12, "expert_bias": True, "freq": True, "mtp": 1},
    "mtp": {"mtp": 2},
}

Sizes = dict[str, int | None]


@dataclass(frozen=True)
class MegatronCase:
    """A model, the job that saves it, and the one that loads it.

    Attributes:
        model, parallel, target: as `megatron_models` knows them.
        kind, target_kind: layouts.
        metadata: how Megatron shards a distributed checkpoint.
        preset: transformers has the model, too; empty if not.
        way: what it is converted into before it becomes Megatron's again, if anything.
    """

    seed: int
    model: dict[str, Any]
    parallel: Sizes
    target: Sizes
    kind: str
    target_kind: str
    metadata: dict[str, Any]
    preset: str
    way: str

    @property
    def reads_optimizer(self) -> bool:
        """True if reshard knows whose the states of the source's optimizer are."""
        optimizer = self.model.get("optimizer")
        if optimizer is None or self.kind == "torch_dist":
            return optimizer is not None
        # a plain one of float32 weights has no masters to prove whose its states are
        return optimizer == "distributed" or self.model["dtype"] == "bfloat16"

    @property
    def keeps_optimizer(self) -> bool:
        """True if the target has the source's optimizer, in a form that a job of its sizes loads."""
        if self.way or not self.reads_optimizer:
            return False
        same_optimizers = (self.parallel["ep"] == 1) == (self.target["ep"] == 1)
        return self.target_kind == "megatron" or same_optimizers

    @property
    def target_optimizer(self) -> Any:
        """The kind of optimizer that the target's job has to have."""
        return "plain" if self.target_kind == "megatron" else self.model["optimizer"]


def build_case(seed: int) -> MegatronCase:
    """The case of a seed."""
    draw = random.Random(f"megatron {seed}")
    preset = draw.choice((*PRESETS, *[""] * 5))
    model = _of_preset(draw, preset) if preset else _any_model(draw)
    kind = draw.choice(KINDS)
    metadata = {}
    if kind == "torch_dist" and draw.random() < 0.2:
        metadata = {"singleton_local_shards": True}
    elif kind == "torch_dist" and draw.random() < 0.2:
        metadata = {"chained_optim_avoid_prefix": False}
    parallel = _sizes(draw, model)
    if metadata.get("singleton_local_shards") and model.get("grouped") and 1 not in (parallel["pp"], parallel["ep"]):
        metadata = {}  # Megatron-Core refuses to save such a model
    shares = parallel["pp"] != 1 and (model["tied"] or model.get("mtp"))
    if kind == "torch_dist" and shares and model.get("optimizer") == "distributed":
        # shared embeddings have a bucket of their own; of several buckets, Megatron saves other moments than it has
        model["optimizer"] = "plain"
    return MegatronCase(
        seed,
        model,
        parallel,
        _sizes(draw, model),
        kind,
        draw.choice(KINDS),
        metadata,
        preset,
        draw.choice(("", "", "unified", "dcp", "ranks")),
    )


def _common(draw: random.Random) -> dict[str, Any]:
    groups = draw.choice((1, 2, 4))
    return {
        "layers": draw.choice((2, 4, 4, 5, 6)),
        "hidden": 8 * draw.randint(3, 6),
        "groups": groups,
        "heads": groups * draw.choice((1, 2)) if groups > 1 else 4,
        "ffn": 8 * draw.randint(2, 6),
        "head_dim": draw.choice((4, 8)),
        "vocab": 8 * draw.randint(3, 6),
        "tied": draw.random() < 0.3,
    }


def _any_model(draw: random.Random) -> dict[str, Any]:
    model = _common(draw) | _FAMILIES[draw.choice(list(_FAMILIES))]
    model["dtype"] = draw.choice(("bfloat16", "bfloat16", "float32"))
    model["optimizer"] = draw.choice((None, "plain", "distributed"))
    if model.get("freq"):
        model["freq"] = [0, *(draw.randrange(2) for _ in range(model["layers"] - 2)), 1]
    if model.get("mla"):
        model["heads"] = model["groups"] = 4
    if model.get("mtp"):
        model["tied"] = False  # in several stages, Megatron cannot save it
    return model


def _of_preset(draw: random.Random, preset: str) -> dict[str, Any]:
    model = _common(draw) | {"dtype": "float32"}
    if preset == "qwen2":
        model |= _FAMILIES["qwen2"] | {"hidden": model["heads"] * model["head_dim"]}
    if preset == "qwen3_moe":
        model |= _EXPERTS
    if preset == "glm4_moe":
        dense = draw.choice((0, 1))
        model |= {**_EXPERTS, "shared": 8, "expert_bias": True, "qkv_bias": True, "rotary": 0.5, "tied": False}
        if dense:  # with a list, Megatron numbers layers even if all have experts, which names do not show
            model["freq"] = [0] * dense + [1] * (model["layers"] - dense)
    if preset == "gpt_oss":
        model |= {**_EXPERTS, "bias": True, "sinks": True, "qk_norm": False, "tied": False}
    return model


def _sizes(draw: random.Random, model: Mapping[str, Any]) -> Sizes:
    """A job; of many that differ in their stages' layers alone none is more likely."""
    kinds: dict[tuple[int | None, ...], list[Sizes]] = {}
    for sizes in all_sizes(model):
        kinds.setdefault(tuple(sizes[key] for key in ("tp", "pp", "vpp", "ep", "etp")), []).append(sizes)
    return draw.choice(draw.choice(list(kinds.values())))


def all_sizes(model: Mapping[str, Any]) -> list[Sizes]:
    """Every job of up to four ranks whose sizes fit a model."""
    found: list[Sizes] = []
    names = ("tp", "pp", "vpp", "ep", "etp", "dp", "first", "last")
    layers = model["layers"]
    ends = (None, 1, 2)
    has_mtp = bool(model.get("mtp"))
    values = (1, 2, 4), (1, 2, 4), (None, 2), (1, 2, 4), (None, 1, 2), (1, 2, 4), ends, ends
    for sizes in product(*values):
        given = dict(zip(names, sizes, strict=True))
        tp, pp, ep, dp = (each or 1 for each in (given["tp"], given["pp"], given["ep"], given["dp"]))
        fits_ranks = tp * pp * dp <= _RANKS and model["groups"] % tp == 0 and not (given["vpp"] and has_mtp)
        fits_stages = _fits_stages(layers, pp, given["vpp"], given["first"], given["last"])
        if fits_ranks and fits_stages and _fits_experts(model, given, tp, ep, dp):
            found.append(given)
    return found


def _fits_experts(model: Mapping[str, Any], given: Sizes, tp: int, ep: int, dp: int) -> bool:
    etp = given["etp"]
    if not model.get("experts"):
        return ep == 1 and etp is None
    if model.get("bias") and (etp or tp) > 1:
        return False
    of_experts = ep * (etp or tp)
    # one folder for each tensor rank, whose name no other rank's has
    has_folders = tp % (etp or 1) == 0 and of_experts % tp == 0
    if model.get("freq") and model.get("optimizer") and ep > 1 and given["pp"] != 1:
        return False  # an optimizer of experts fails in stages that have none
    return etp != tp and has_folders and model["experts"] % ep == 0 and tp * dp % of_experts == 0


def _fits_stages(layers: int, pp: int, vpp: int | None, first: int | None, last: int | None) -> bool:
    chunks = vpp or 1
    if pp == 1:
        return vpp is None and first is None and last is None
    given = [each for each in (first, last) if each is not None]
    middle, stages = layers - sum(given), pp - len(given)
    if stages == 0:
        return middle == 0 and vpp is None
    return middle > 0 and middle % (stages * chunks) == 0 and all(each % chunks == 0 for each in given)


def check_megatron(first: int, directory: Path) -> list[str]:
    """Return the problems of the cases from seed `first` on."""
    directory.mkdir()
    with (
        MegatronJudge(directory / "megatron.log") as judge,
        TorchJudge(directory / "torch.log") as torch,
        TransformersJudge(directory / "transformers.log") as transformers,
    ):
        seeds = range(first, first + CASES)
        return check_seeds(
            seeds, directory, lambda seed, place: _Check(build_case(seed), judge, torch, transformers, place).run()
        )


class _Check:
    def __init__(
        self,
        case: MegatronCase,
        judge: MegatronJudge,
        torch: TorchJudge,
        transformers: TransformersJudge,
        directory: Path,
    ) -> None:
        self.case = case
        self.judge = judge
        self.torch = torch
        self.transformers = transformers
        self.directory = directory
        self.source = str(directory / "source")
        self.one = str(directory / "made" / "one")
        # distributed checkpoints are the same of grouped experts, and name them one by one
        self.model = case.model | ({"grouped": False} if case.kind == "torch_dist" else {})

    def run(self) -> Iterator[str]:
        case = self.case
        try:
            self.judge.ask("make", directory=str(self.directory / "made"), model=self.model, seed=case.seed)
            self.judge.ask(
                "save",
                one=self.one,
                target=self.source,
                model=case.model,
                parallel=case.parallel,
                kind=case.kind,
                metadata=case.metadata,
            )
            yield from self._check_whole()
            yield from self._check_back()
            if case.preset:
                yield from self._check_hugging_face()
        except (ReshardError, RefusalError) as error:
            yield f"{case}: {type(error).__name__}: {error}"
        except Exception:
            yield f"{case}: {traceback.format_exc()}"

    def _check_whole(self) -> Iterator[str]:
        self._convert("whole", layout="unified", verify="content", **_selection(self.case.reads_optimizer))
        made = directory_contents(self.directory / "whole")
        want = read_safetensors(self.directory / "made" / "want.safetensors")
        if not self.case.reads_optimizer:
            want = {name: entry for name, entry in want.items() if not name.startswith("optimizer.")}
        yield from (f"{self.case}: {line}" for line in differences("whole", {0: made}, {0: _reshaped(want, made)}))

    def _check_back(self) -> Iterator[str]:
        """Check what ranks load, of a checkpoint that went through another form."""
        case = self.case
        given: dict[str, Any] = {"source": self.source}
        if case.way == "unified":
            given = {"source": str(self.directory / "whole"), "attention_heads": case.model["heads"]}
        if case.way == "dcp":
            given = {"source": str(self.directory / "dcp"), "attention_heads": case.model["heads"]}
            self._convert("dcp", layout="dcp", shards=2, verify="content", **_selection(case.reads_optimizer))
            whole = str(self.directory / "whole" / "model.safetensors")
            self.torch.ask("join", source=given["source"], whole=whole, target=str(self.directory / "one.pt"))
        if case.way == "ranks":
            strategy = str(self.directory / "strategy.ckpt")
            names = directory_contents(self.directory / "whole")
            cuts = [cut for cut in _CUTS if any(fnmatchcase(name, cut.rpartition("=")[0]) for name in names)]
            make_strategy(strategy, like=str(self.directory / "whole"), data_parallel=1, model_parallel=2, cuts=cuts)
            self._convert("ranks", target_strategy=strategy, verify="content", **_selection(case.reads_optimizer))
            given = {
                "source": str(self.directory / "ranks"),
                "source_strategy": strategy,
                "attention_heads": case.model["heads"],
            }
        yield from self._check_loaded("back", case.target_kind, given, case.keeps_optimizer)

    def _check_loaded(
        self, name: str, kind: str, given: Mapping[str, Any], keeps_optimizer: bool = False
    ) -> Iterator[str]:
        case = self.case
        options: dict[str, Any] = {"transformer_impl": "local"} if kind == "torch_dist" else _options(case.target)
        if case.model.get("mla"):
            given = {key: value for key, value in given.items() if key != "attention_heads"}
        self._convert(name, layout=kind, verify="content", **options, **given, **_selection(keeps_optimizer))
        model, one = self.model | {"optimizer": case.target_optimizer if keeps_optimizer else None}, self.one
        if keeps_optimizer and model["optimizer"] != case.model["optimizer"]:
            other = self.directory / "other"
            one = str(other / "one")
            self.judge.ask("make", directory=str(other), model=model, seed=case.seed)
        problems = self.judge.ask(
            "check", directory=str(self.directory / name), one=one, model=model, parallel=case.target, kind=kind
        )
        yield from (f"{case}: {name}: {problem}" for problem in problems)

    def _check_hugging_face(self) -> Iterator[str]:
        """Check that transformers answers as Megatron does, and that its directory becomes the same checkpoint."""
        case = self.case
        like, model = str(self.directory / "like"), str(self.directory / "hf")
        self.transformers.ask("make_model", directory=like, config=_config(case), dtype="float32", seed=case.seed)
        preset = {"preset": case.preset, "allow_model": [case.preset], "switch": ["names=megatron"]}
        self._convert("hf", layout="unified", like=like, verify="content", **preset)
        draw = random.Random(case.seed)
        tokens = [[draw.randrange(case.model["vocab"]) for _ in range(8)] for _ in range(2)]
        answers = [str(self.directory / f"{who}.safetensors") for who in ("megatron", "transformers")]
        self.judge.ask("logits", one=self.one, model=case.model, tokens=tokens, target=answers[0])
        self.transformers.ask("save_logits", directory=model, tokens=tokens, target=answers[1])
        logits = [np.frombuffer(read_safetensors(Path(path))["logits"][2], "<f4") for path in answers]
        unlike = float(np.abs(logits[0] - logits[1]).max())
        if not unlike < _TOLERANCE:
            yield f"{case}: its logits differ by {unlike}"
        yield from self._check_loaded(
            "again", "megatron", {"source": model, "attention_heads": case.model["heads"], **preset}
        )

    def _convert(self, name: str, **options: object) -> None:
        given: dict[str, Any] = {"source": self.source, "target": str(self.directory / name), "workers": 1}
        convert(build_request(**given | options))


def _reshaped(want: Contents, made: Contents) -> Contents:
    """What Megatron has, where it has bytes under a shape that says nothing of experts, in the shape that was made."""
    return {
        name: (dtype, made[name][1] if ".mlp.experts.weight" in name and name in made else shape, data)
        for name, (dtype, shape, data) in want.items()
    }


def _selection(everything: bool) -> dict[str, str]:
    return {} if everything else {"select": "weights-only"}


def _options(sizes: Sizes) -> dict[str, int]:
    names = {
        "tp": "tensor_parallel",
        "pp": "pipeline_parallel",
        "vpp": "virtual_pipeline",
        "ep": "expert_parallel",
        "etp": "expert_tensor_parallel",
        "first": "pipeline_first_layers",
        "last": "pipeline_last_layers",
    }
    return {names[key]: value for key, value in sizes.items() if key in names and value is not None}


def _config(case: MegatronCase) -> dict[str, Any]:
    """The model as transformers describes it."""
    model = case.model
    config = {
        "model_type": case.preset,
        "vocab_size": model["vocab"],
        "hidden_size": model["hidden"],
        "intermediate_size": model["ffn"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["groups"],
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": model["tied"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if case.preset != "qwen2":
        config["head_dim"] = model["head_dim"]
    if case.preset == "gpt_oss":
        config |= {
            "num_local_experts": model["experts"],
            "num_experts_per_tok": 2,
            "intermediate_size": model["moe_ffn"],
        }
    if case.preset == "glm4_moe":
        config["rope_parameters"]["partial_rotary_factor"] = model["rotary"]
        config |= {
            "n_routed_experts": model["experts"],
            "num_experts_per_tok": 2,
            "moe_intermediate_size": model["moe_ffn"],
            "n_shared_experts": model["shared"] // model["moe_ffn"],
            "first_k_dense_replace": (model.get("freq") or []).count(0),
            "use_qk_norm": True,
            "attention_bias": True,
        }
    if case.preset == "qwen3_moe":
        config |= {
            "num_experts": model["experts"],
            "num_experts_per_tok": 2,
            "moe_intermediate_size": model["moe_ffn"],
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config
