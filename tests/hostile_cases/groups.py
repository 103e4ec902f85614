"""All cases that a command is tried with, by culprit."""

from hostile_cases import command_lines, config_files, endless_files, environments, machines, saved_runs

GROUPS = {
    "Command lines": command_lines.CASES,
    "Config files": config_files.CASES,
    "Environments": environments.CASES,
    "Machines": machines.CASES,
    "Runs and checkpoints": saved_runs.CASES,
    "Files without end": endless_files.CASES,
}
CASES = {case.name: case for cases in GROUPS.values() for case in cases}
