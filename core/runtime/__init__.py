"""The environment of a process: progress, retries, threads, the memory budget, secrets and keys, wording."""
