"""Users' presets: parsed, and compiled for the names of real models, in both directions."""

import json
from contextlib import closing
from functools import cache

import yaml

from reshard.core.changes.preset import parse_preset, preset_text
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.files.any_format import read_index
from reshard.core.plan.preset_route import compile_preset
from reshard.core.plan.preset_steps import KnownNames, Settings
from reshard.core.request.conversion import build_request
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser
from tests.support.families import Family, switches_of

_ORIGIN = "hostile.yaml"
_FAMILIES = tuple(map(Family, ("qwen3_moe", "deepseek3", "mixtral")))
_SMALL = {
    "preset": "small",
    "title": "Small",
    "proof": "read",
    "variables": {"H": ["hidden_size // 2 * 2", "4"], "E": "num_experts"},
    "counted": {"M": ["mtp.{i}.norm.weight"]},
    "switches": {
        "odd": {"about": "what is odd", "values": {"yes": "a", "no": "b"}, "default": "no", "otherwise": "yes"},
        "axes": {"about": "axes", "values": {"1": "a", "2": "b"}, "axes_of": "norm.weight"},
    },
    "names": {
        "only": {
            "model": [
                {"mf": "norm.weight", "hf": {"model.norm.weight": ["H"]}, "dtype": "float32"},
                {"mf": "qkv.weight", "hf": {"q.weight": ["2 * H", "H"], "k.weight": ["H", "H"]}, "groups": "2"},
                {
                    "mf": {"u.weight": ["H"], "v.weight": ["H"]},
                    "hf": {"w.weight": ["2 * H"]},
                    "rope": {"u.weight": "2"},
                },
                {
                    "mf": "g.weight",
                    "hf": {"gg.weight": ["4 * H", "H"]},
                    "regrouped": {"gg.weight": {"parts": ["H", "H"], "mf": "1", "hf": "2"}},
                },
                {"mf": "p.weight", "hf": {"pp.weight": ["2 * H", "H"]}, "positions": {"head": "H", "rows": "2"}},
                {
                    "mf": "a.weight",
                    "hf": {"aa.weight": ["H", "2 * H"]},
                    "regrouped": {"aa.weight": {"parts": ["1", "1"], "hf": "H", "axis": "1"}},
                },
                {"mf": "i.weight", "hf": {"ii.weight": ["H", "H"]}, "padded": "true"},
                {"mf": "n.weight", "hf": {"nn.weight": ["H"]}, "added": "1"},
            ],
            "layers": {"decoder.layers.{L}": "model.layers.{L}"},
            "layer": [
                {"mf": "w1", "hf": {"e.{e}.w": ["H", "H"]}, "stacked": "E", "merged": "true", "transposed": "true"},
                {"mf": "x", "hf": {"x": ["H"]}, "only_in": ["decoder.layers.{L}"], "required_if": "M"},
                {"mf": "w2", "hf": {"e.w": ["E", "H", "H"]}, "stacked": "E", "boxed": "true", "when": {"odd": "yes"}},
            ],
            "copies": {"copy.{i}.weight": {"of": "model.norm.weight", "count": "M"}},
            "adapters": {"lora_a": "lora_A.weight"},
        }
    },
}
_NAMES = ["norm.weight", "qkv.weight", "u", "v", "mtp.0.norm.weight", "adam_m.norm.weight"]
_NAMES += [f"{name}.weight" for name in "gpain"]
_NAMES += [f"decoder.layers.{layer}.{name}" for layer in range(3) for name in ("w1", "w2", "x")]
_HF_NAMES = ["model.norm.weight", "q.weight", "k.weight", "w", "copy.0.weight"]
_HF_NAMES += [f"{2 * name}.weight" for name in "gpain"]
_HF_NAMES += [f"model.layers.{layer}.{name}" for layer in range(3) for name in ("e.0.w", "e.1.w", "e.w", "x")]


def _seeds() -> list[bytes]:
    small = json.dumps(_SMALL).encode()
    one = preset_text("llama").encode()
    documents = [
        yaml.load(preset_text(name), yaml.BaseLoader)
        for name in ("qwen3_moe", "mixtral", "deepseek3", "qwen3_next", "deepseek_v32")
    ]
    return [small, small, yaml.safe_dump(_SMALL).encode(), one, *(json.dumps(each).encode() for each in documents)]


def _parse(data: bytes) -> None:
    """Parse a preset, compile it for all models, and plan with it; it has to fit one of them."""
    preset = parse_preset(data, _ORIGIN)
    refused: list[InputError] = []
    for known, settings, family in _models():
        given = {name: next(iter(switch.values)) for name, switch in preset.switches.items()}
        given |= {name: value for name, value in settings.given.items() if name in preset.switches}
        try:
            compile_preset(preset, known, Settings(given, None, settings.config, _ORIGIN))
            if family:
                _plan(data, family, [f"{name}={value}" for name, value in given.items()])
        except InputError as error:
            refused.append(error)
    if len(refused) == len(_models()):
        raise refused[0]


def _plan(data: bytes, family: Family, switches: list[str]) -> None:
    place = parse_url(f"memory:///fuzz/{_ORIGIN}")
    place.store.put(place.path, data)
    source, switch = str(family.mf), tuple(switches)
    make_plan(
        build_request(
            source=source, target="/none", layout="unified", preset=str(place), like=str(family.hf), switch=switch
        )
    )


@cache
def _models() -> list[tuple[KnownNames, Settings, Family | None]]:
    """Names of models, and what is known of them; with files, of those that are planned with."""
    config = {"hidden_size": 8, "num_experts": 2}
    models: list[tuple[KnownNames, Settings, Family | None]] = [
        (KnownNames(dict.fromkeys(names, 1)), Settings({}, None, config, _ORIGIN), None)
        for names in (_NAMES, _HF_NAMES)
    ]
    for family in _FAMILIES:
        fields = json.loads((family.hf / "config.json").read_text())
        mf, hf = _axes(str(family.mf)), _axes(*map(str, sorted(family.hf.glob("*.safetensors"))))
        for known, to_mf in ((KnownNames(mf, hf), False), (KnownNames(hf), True)):
            given = dict(each.split("=") for each in switches_of(family, to_mf=to_mf))
            models.append((known, Settings(given, None, fields, _ORIGIN), None if to_mf else family))
    return models


def _axes(*paths: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in paths:
        with closing(open_source(parse_url(path))) as file:
            found |= {name: len(entry.shape) for name, entry in read_index(file).entries.items()}
    return found


PRESET = Parser("preset", _seeds, _parse, (damaged_json,), memory_factor=512)
