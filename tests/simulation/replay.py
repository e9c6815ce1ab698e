"""See one seed again: `python -m tests.simulation.replay SEED [--all]`. The same seed gives the same story."""

import argparse
import sys

from tests.simulation.trace import Broken
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--all", action="store_true", help="print everything that happened, not one job's story")
    asked = parser.parse_args()
    world = World(asked.seed)
    broken = None
    try:
        outcome = world.run()
    except Broken as error:
        broken = error
    if asked.all:
        print(world.monitor.trace.about(""))
    if broken is not None:
        print(broken)
        return 1
    print(f"seed {outcome.seed} holds: {outcome.steps} steps, {outcome.virtual_seconds:.1f} virtual seconds")
    print(f"trace {outcome.digest}")
    print(", ".join(f"{status.value} {n}" for status, n in sorted(outcome.jobs.items())))
    print(", ".join(f"{kind} {n}" for kind, n in sorted(outcome.counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
