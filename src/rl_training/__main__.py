"""`python -m rl_training`: the same as `rl-training`."""

import runpy

runpy.run_module("rl_training.cli", run_name="__main__", alter_sys=True)
