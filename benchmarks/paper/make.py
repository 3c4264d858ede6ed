"""Draws the figures and tables of POET's paper again, from this code and on its own graphs.

    python benchmarks/paper/make.py [--quick] [--draw] [--out FILE] [--seconds 3]

Measures what benchmarks/data/paper.json does not hold yet (rows of another build of poet are
measured again), then writes benchmarks/figures/paper_*.png and docs/paper.md. A run that was
stopped goes on where it ended. --draw measures nothing; --quick measures a small part and draws
nothing. Prints as JSON in the last line how many cells another method has a better plan for.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paper.run import draw, measure_all, values

DATA = Path(__file__).resolve().parents[1] / "data" / "paper.json"


def main(arguments: list[str] | None = None) -> None:
    """Measures and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part, no pictures")
    parser.add_argument("--draw", action="store_true", help="pictures and page alone")
    parser.add_argument("--out", type=Path, default=DATA, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each search")
    options = parser.parse_args(arguments)
    if not options.draw:
        measure_all(options.out, options.seconds, quick=options.quick)
    if not options.quick:
        draw(options.out)
    found: dict[str, Any] = {"values": values(options.out)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
