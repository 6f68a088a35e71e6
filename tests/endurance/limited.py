"""Runs a command under a memory limit of the kernel's, and says how much memory it took.

`python -S limited.py LIMIT_BYTES COMMAND …` (0: no limit) ends as the command does; the last line of its stderr is
`peak BYTES`.

It is a program of its own because of how Linux counts: a process inherits the peak of the one that it was forked from,
which for a test run may be gigabytes. This one has next to nothing.
"""

import os
import resource
import sys


def main() -> None:
    limit_bytes, command = int(sys.argv[1]), sys.argv[2:]
    process = os.fork()
    if process == 0:
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        os.execv(command[0], command)
    _, status, usage = os.wait4(process, 0)
    sys.stderr.write(f"\npeak {usage.ru_maxrss * 1024}\n")
    sys.exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    main()
