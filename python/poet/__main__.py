"""`python -m poet`."""

import sys

from poet._cli import main

sys.exit(main())
