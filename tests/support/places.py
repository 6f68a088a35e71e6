"""Where the project and its fixtures are."""

from pathlib import Path

PROJECT = Path(__file__).parents[2]
FIXTURES = PROJECT / "tests/fixtures"
