"""`make bench-scale`: all measurements of synthesis at scale, one after the other; `--only` runs some of them.

Each is a process of its own with its default sizes. The exit status is 1 if one misses its target or fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

MEASUREMENTS = ("wall", "memory_flat", "memory_actor", "nodes", "peers", "stages")


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS)
    names = parser.parse_args().only or MEASUREMENTS
    failed = [name for name in names if subprocess.run([sys.executable, "-m", f"tests.bench.{name}"]).returncode]
    print(f"missed: {', '.join(failed)}" if failed else "all targets met", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
