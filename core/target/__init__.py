"""The target of a conversion: its working directory, its records, its index."""
