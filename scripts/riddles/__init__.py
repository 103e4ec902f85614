"""Bad command lines, configs, environments, machines and files, each of which must be answered by a sentence.

`scripts/hostile.py` tries them all against the real command; a sample runs with the tests. A room per culprit, each
with a list `KINDS`; `kind.py` says what a kind is, `attempt.py` how one is tried and judged.
"""
