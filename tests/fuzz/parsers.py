"""What is fuzzed: every parser of bytes or text that others may have written, with files to begin from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard.core.errors import InputError
from tests.fuzz.mutations import Mutator


@dataclass(frozen=True)
class Parser:
    """One parser under attack.

    Attributes:
        name: what `--only` calls it.
        seeds: sound inputs, and others that are worth beginning from.
        parse: parses one input; it may raise nothing but a refusal.
        structural: mutators that know what its inputs look like.
        origin: what the message of a refusal has to contain: the file's name.
        refusals: what it may raise.
        memory_factor: how many times an input's size it may allocate. Python's objects are large: of JSON's
            `[[],[],…]` each three characters become 64 bytes.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes], object]
    structural: tuple[Mutator, ...] = ()
    origin: str = ""
    refusals: tuple[type[Exception], ...] = (InputError,)
    memory_factor: int = 64
