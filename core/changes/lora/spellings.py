"""How programs spell the names of an adapter's matrices: around the name of the module that they are for."""

from collections.abc import Mapping

from reshard.core.runtime.records import Record


class Spelling(Record):
    """What a program puts around a module's name.

    Attributes:
        about: whose it is.
        prefix: what comes before it.
        a: what comes after it, for A.
        b: the same for B.
    """

    about: str
    a: str
    b: str
    prefix: str = ""

    def name_of(self, module: str, which: str) -> str:
        """Return the name of a module's matrix; `which` is `a` or `b`."""
        return f"{self.prefix}{module}{self.a if which == 'a' else self.b}"


PEFT = Spelling("PEFT", ".lora_A.weight", ".lora_B.weight", "base_model.model.")
MINDFORMERS: Mapping[str, Spelling] = {
    "mindpet": Spelling("mindpet, for older models", ".mindpet_delta_lora_a", ".mindpet_delta_lora_b"),
    "tk": Spelling("older versions of mindpet", ".tk_delta_lora_a", ".tk_delta_lora_b"),
    "parallel_core": Spelling("parallel_core in graph mode", ".lora_A.weight", ".lora_B.weight"),
    "pynative": Spelling("PyNative mode", ".lora_a", ".lora_b"),
}
"""Value of the switch `lora_names` -> how MindFormers spells them then."""
