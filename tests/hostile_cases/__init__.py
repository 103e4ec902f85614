"""Hostile input: bad command lines, configs, environments, machines, checkpoints and run folders.

`make hostile` (`scripts/hostile.py`, `scripts/hostile_folders.py`) tries every case with real commands and writes the
results. The tests try all command lines and config files in one process, and a sample of the other cases as
`make hostile` does.

Each module holds the cases of one culprit. `case.py` defines a case, `attempt.py` tries one and judges the outcome;
`run_folders.py` does both for run folders made to do harm.
"""
