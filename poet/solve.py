"""POET's own script: `python poet/solve.py --model resnet18_cifar ...` is `poet solve ...`.

From a clone, once poet is installed (`make build`, or `pip install -e .`). Nothing else lives in
this folder: the package is python/poet.
"""

import sys

try:
    from poet._cli import main
except ImportError as error:
    sys.exit(f"{error}\npoet is not installed in this Python: see Install in README.md.")

if __name__ == "__main__":
    sys.exit(main(["solve", *sys.argv[1:]]))
