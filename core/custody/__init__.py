"""What can be proven of a target: its files' digests and signature, where it comes from, and what was done to it."""
