"""`python -m rl_training.cli`."""

import os
import sys

# Python puts the working folder first; what lies there must not stand in for anything that we import from here on
try:
    here = os.getcwd()
except OSError:  # it is gone, which the command will say
    here = ""
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
    del sys.path[0]

from rl_training.cli import main

sys.exit(main())
