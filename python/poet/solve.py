"""`python -m poet.solve` is `poet solve`. The function `poet.solve` lives in `poet._solve`."""

import sys

from poet._solve import solve

if __name__ == "__main__":
    from poet._cli import main

    sys.exit(main(["solve", *sys.argv[1:]]))

# An import binds poet.solve to what sys.modules holds: the function stays what it was.
sys.modules[__name__] = solve  # type: ignore[assignment]
