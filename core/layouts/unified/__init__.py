"""Whole tensors in a few files with an index, as Hugging Face and MindSpore write them."""
