"""The reshard library: knows nothing of Prefect, MindSpore or the terminal."""
