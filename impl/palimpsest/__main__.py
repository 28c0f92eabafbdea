"""`python -m palimpsest` is the `palimpsest` command."""

import sys

from palimpsest.cli import main

sys.exit(main())
