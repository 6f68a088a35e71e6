"""Models of any names and shapes, for judges that train them on ranks; run by the Python of torch's environment.

A description has `parameters`, name -> shape, dtype and whether it is frozen; `buffers`, name -> shape and dtype; and
`tied`, a second name -> its parameter.
"""

from collections.abc import Mapping
from typing import Any

import torch

Description = Mapping[str, Mapping[str, Any]]


class Block(torch.nn.Module):  # type: ignore[misc]  # mypy has no torch
    """Parameters, buffers and blocks below it; what it answers depends on each element of its parameters."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for parameter in self._parameters.values():
            answer = parameter.sin().float().sum()
            given = given + (answer.full_tensor() if hasattr(answer, "full_tensor") else answer)
        for child in self.children():
            given = child(given)
        return given

    def place(self, name: str) -> tuple["Block", str]:
        """The block that holds something, made if it is missing, and the last part of the name."""
        first, dot, rest = name.partition(".")
        if not dot:
            return self, name
        if first not in self._modules:
            self.add_module(first, Block())
        return self._modules[first].place(rest)


def build(model: Description, seed: int) -> Block:
    """Return a model with random values, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    root = Block()
    for name, how in model["parameters"].items():
        block, last = root.place(name)
        value = _random(how, generator)
        block.register_parameter(last, torch.nn.Parameter(value, requires_grad=not how.get("frozen", False)))
    for name, how in model["buffers"].items():
        block, last = root.place(name)
        block.register_buffer(last, _random(how, generator))
    for name, other in model["tied"].items():
        block, last = root.place(name)
        block.register_parameter(last, root.get_parameter(other))
    return root


def _random(how: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    dtype, shape = getattr(torch, how["dtype"]), tuple(how["shape"])
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)
