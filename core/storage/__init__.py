"""Where bytes are: URLs through fsspec, reading at offsets, writing whole files, coalescing of reads."""
