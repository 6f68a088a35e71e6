"""What a process brings: progress, retries, threads, the memory budget, secrets and keys, wording."""
