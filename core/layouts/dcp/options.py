"""Options that only a DCP checkpoint knows."""

MAX_SHARDS = 1 << 16
