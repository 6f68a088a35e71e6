"""`python -m reshard` is the command `reshard`."""

from reshard.cli.main import main

main()
