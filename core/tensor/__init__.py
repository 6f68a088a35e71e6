"""Index space and element types: dtypes, slices, layouts, segments, casts, fingerprints."""
