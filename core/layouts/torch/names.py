"""File names of PyTorch's state dicts.

pytorch_model.bin                                                                     Hugging Face's, in one file
pytorch_model-00001-of-00003.bin, …, pytorch_model.bin.index.json                     in several, with an index
pytorch_model.fp16.bin; pytorch_model.fp16-00001-of-00003.bin, pytorch_model.bin.index.fp16.json    a variant
adapter_model.bin, diffusion_pytorch_model.bin                                        of PEFT and diffusers
anything.pt, .pth, .bin                                                               one file, if it is named
"""

import re

SINGLE_NAME = "pytorch_model.bin"
INDEX_NAME = "pytorch_model.bin.index.json"
_STEM = r"(?:pytorch|adapter|diffusion_pytorch)_model"
_WEIGHTS = re.compile(rf"{_STEM}.*\.bin", re.ASCII | re.DOTALL)
_INDEX = re.compile(rf"{_STEM}.*\.bin\.index(?:\.[^.]+)?\.json", re.ASCII | re.DOTALL)
_SUFFIXES = (".pt", ".pth", ".bin")
_NUMBERS = re.compile(r"[0-9]+")
_OF_RANK = re.compile(r"consolidated\.[0-9]+\.pth|.*rank[_.-]?[0-9]+.*", re.ASCII | re.DOTALL | re.IGNORECASE)


def is_weights(name: str) -> bool:
    """True for a file of weights in a directory of Hugging Face's."""
    return _WEIGHTS.fullmatch(name) is not None


def is_index(name: str) -> bool:
    """True for the index of such files."""
    return _INDEX.fullmatch(name) is not None


def is_torch_file(name: str) -> bool:
    """True for a name that torch.save's files have."""
    return name.endswith(_SUFFIXES) and not name.startswith(".")


def rank_template(name: str) -> str | None:
    """Return what the names of the files of all ranks have in common; None for a file that is not one rank's."""
    return _NUMBERS.sub("#", name) if _OF_RANK.fullmatch(name) else None
