"""peft's merge, in torch's own environment: run by the benchmarks, knows nothing of them.

    python peft_merge.py BASE ADAPTER TARGET

This is what merging an adapter takes without reshard.
"""

import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def main() -> None:
    """The command."""
    base, adapter, target = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged.save_pretrained(target, max_shard_size="500MB")


if __name__ == "__main__":
    main()
