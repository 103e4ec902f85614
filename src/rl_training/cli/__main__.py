"""`python -m rl_training.cli`."""

import os
import sys

# Python puts the working folder first in sys.path; its files must not shadow the modules that we import
try:
    here = os.getcwd()
except OSError:  # the folder was deleted, which the command reports
    here = ""
if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
    del sys.path[0]

from rl_training.cli import main

sys.exit(main())
