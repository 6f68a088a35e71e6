"""A checkpoint of many files: its catalog, how its files are chosen, damage, contents by name, and the manifest."""
