"""Megatron-Core's checkpoints of one file for each rank, which MindSpeed writes as well."""
