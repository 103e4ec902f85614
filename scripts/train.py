"""`python scripts/train.py …` is `rl-training train …` in a checkout."""

import sys

from rl_training.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
