"""transformers in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard: it makes tiny models, and says whether a
directory loads without a weight too many or too few, and whether the model in it answers as the first one did.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
_TOKENS = 12


def make_model(directory: str, config: dict[str, Any], dtype: str, seed: int, in_memory: str = "") -> None:
    """Makes a model with random weights, norms and biases included, and saves it.

    With `in_memory`, saves it there as well, under the names that transformers has in memory.
    """
    torch.manual_seed(seed)
    model = _class_of(config).from_config(AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, parameter in _tensors(model):
            if "rotary" not in name and parameter.is_floating_point():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            if name.endswith("linear_attn.norm.weight"):  # Megatron has it zero-centered: near one nothing is rounded
                parameter.clamp_(-0.4, 0.9).add_(1)
    bias = {name: value.data.clone() for name, value in _tensors(model) if "e_score" in name}
    model = model.to(getattr(torch, dtype))
    for name, value in _tensors(model):
        if name in bias:
            value.data = bias[name]
    model.save_pretrained(directory, max_shard_size="40KB")
    if in_memory:
        model.save_pretrained(in_memory, save_original_format=False)
    # those of transformers name their tokenizer's files only; it needs no tokenizer
    (Path(directory) / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))


def compare_models(directory: str, other: str, seed: int) -> list[str]:
    """What is different: weights that are missing or too many, dtypes, values, answers to random tokens."""
    problems: list[str] = []
    model, loaded = _load(directory)
    again, loaded_again = _load(other)
    problems += [
        f"{kind}: {sorted(map(str, loaded_again[kind]))[:4]}, not {sorted(map(str, loaded[kind]))[:4]}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if set(loaded_again[kind]) != set(loaded[kind])
    ]
    weights, others = model.state_dict(), again.state_dict()
    if weights.keys() != others.keys():
        problems.append(f"other weights: {sorted(weights.keys() ^ others.keys())[:4]}")
    problems += [
        f"{name}: {others[name].dtype}, other values than {weights[name].dtype}"
        for name in weights.keys() & others.keys()
        if weights[name].dtype != others[name].dtype or not torch.equal(weights[name], others[name])
    ]
    torch.manual_seed(seed)
    tokens = torch.randint(3, model.config.get_text_config().vocab_size, (2, _TOKENS))
    with torch.no_grad():
        answers = [each.eval()(tokens).logits for each in (model, again)]
    if not torch.isfinite(answers[0]).all():
        problems.append("its answers are not finite, so that they tell nothing")
    if not torch.equal(*answers):
        problems.append(f"logits differ by {(answers[0] - answers[1]).abs().max().item()}")
    return problems


def save_logits(directory: str, tokens: list[list[int]], target: str) -> None:
    """Saves what a model answers, as `logits`."""
    model, loaded = _load(directory)
    unlike = {kind: names for kind, names in loaded.items() if names}
    if unlike:
        raise ValueError(f"{directory}: {unlike}")
    with torch.no_grad():
        save_file({"logits": model.eval()(torch.tensor(tokens)).logits.contiguous()}, target)


def shapes_of(directory: str) -> dict[str, list[int]]:
    """The shape of each weight of the model that a `config.json` describes; it takes no memory for them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory, local_files_only=True))
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def loading_report(directory: str) -> dict[str, list[str]]:
    """What transformers says on loading a directory: parameters that are missing, unexpected, of other shapes."""
    _, found = AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, dtype="auto", local_files_only=True, ignore_mismatched_sizes=True
    )
    return {
        "missing": sorted(found["missing_keys"]),
        "dropped": sorted(found["unexpected_keys"]),
        "mismatched": sorted(each if isinstance(each, str) else each[0] for each in found["mismatched_keys"]),
    }


def _tensors(model: Any) -> list[tuple[str, Any]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _class_of(config: dict[str, Any]) -> Any:
    return AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM


def _load(directory: str) -> tuple[Any, dict[str, Any]]:
    config = json.loads((Path(directory) / "config.json").read_text())
    loaded: tuple[Any, dict[str, Any]] = _class_of(config).from_pretrained(
        directory, output_loading_info=True, dtype="auto", local_files_only=True
    )
    return loaded


OPERATIONS: dict[str, Callable[..., Any]] = {
    "make_model": make_model,
    "compare_models": compare_models,
    "save_logits": save_logits,
    "shapes_of": shapes_of,
    "loading_report": loading_report,
}
