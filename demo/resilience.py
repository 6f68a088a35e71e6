"""A training that loses ranks, and goes on with fewer: `python -m demo.resilience DIRECTORY`.

Eight ranks train and save. Two are killed; the others get SIGTERM, and those that have to save do so. The checkpoint is
recovered and converted to six ranks, which go on: from files of ranks, and once more from MindFormers' Checkpoint 2.0.
In the end each bit of both models is compared with that of eight ranks that nothing disturbed.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from demo.model import Job
from demo.training import PREFIX, Faults, train, write_job_strategy

BEFORE = Job(stages=1, data_parallel=4, tensor_parallel=2, optimizer_shards=2)
AFTER = Job(stages=1, data_parallel=3, tensor_parallel=2, optimizer_shards=3)
FAULTS = Faults(ranks=(1, 6), step=28)
STEPS = 40
LAST_SAVED = "2_7"
"""The step before the fault, as files name it: epoch 2, step 7."""


def run_cycle(directory: Path) -> None:
    """Show the whole cycle; raises CalledProcessError if a command fails, such as the comparison at the end."""
    strategies = {job: directory / name / "strategy.ckpt" for job, name in ((BEFORE, "before"), (AFTER, "after"))}
    for job, path in strategies.items():
        write_job_strategy(job, path)
    before, after = strategies.values()
    print(f"1. {len(BEFORE.ranks)} ranks train. In step {FAULTS.step}, ranks 1 and 6 are killed.")
    ends = train(BEFORE, directory / "training", STEPS, faults=FAULTS)
    print(f"   How the ranks ended: {', '.join(f'{rank}: {_end_text(code)}' for rank, code in ends.items())}")
    saved = [path.parent.name for path in (directory / "training").glob(f"rank_*/{PREFIX}-{LAST_SAVED}.ckpt")]
    print(f"   Saved step {LAST_SAVED} on SIGTERM: {', '.join(sorted(saved))}; the others hold the same slices.")
    print("2. Can this be recovered, and is anything lost?")
    _reshard("recover", directory / "training", "--source-strategy", before, "--step", LAST_SAVED)
    print(f"3. Convert it to {len(AFTER.ranks)} ranks, each slice from a rank that has it.")
    recovering = ("--recover", "--step", LAST_SAVED, "--source-strategy", before, "--target-strategy", after)
    _reshard("convert", directory / "training", directory / "recovered", *recovering)
    print("   The same as a Checkpoint 2.0.")
    iteration = FAULTS.step - 1
    as_iteration = ("--layout", "checkpoint2", "--iteration", str(iteration), "--common", f"global_step={iteration}")
    _reshard("convert", directory / "training", directory / "iterations", *recovering, *as_iteration, "--quiet")
    print(f"4. {len(AFTER.ranks)} ranks go on to step {STEPS} from either.")
    train(AFTER, directory / "resumed", STEPS, start=directory / "recovered")
    train(AFTER, directory / "resumed_iteration", STEPS, start=directory / "iterations")
    print(f"5. For comparison: {len(BEFORE.ranks)} ranks that nothing disturbs.")
    train(BEFORE, directory / "undisturbed", STEPS)
    for resumed in ("resumed", "resumed_iteration"):
        sides = ("--strategy-a", before, "--strategy-b", after)
        _reshard("diff", directory / "undisturbed", directory / resumed, *sides)


def _reshard(*arguments: str | Path) -> None:
    print("$ reshard", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "reshard", *map(str, arguments)], check=True)
    print()


def _end_text(code: int) -> str:
    return {0: "done", -9: "SIGKILL", -15: "SIGTERM"}.get(code, str(code))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m demo.resilience", description="Trains, fails, recovers, goes on.")
    parser.add_argument("directory", type=Path, help="where to; it is emptied first")
    directory = parser.parse_args().directory
    shutil.rmtree(directory, ignore_errors=True)
    run_cycle(directory)


if __name__ == "__main__":
    main()
