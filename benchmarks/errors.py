"""What can go wrong in the benchmarks for reasons that their user should know."""


class BenchmarkError(Exception):
    """One message that says what is wrong; the run ends with it."""
