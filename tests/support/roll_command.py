"""`roll`, as a script that a `ForkServer` can start."""

import sys

from roll.cli.main import main

sys.exit(main(sys.argv[1:]))
