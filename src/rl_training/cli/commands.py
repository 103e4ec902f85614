"""The commands of `rl-training`. Imports nothing heavy until one is chosen."""

import importlib
import os
import sys

COMMANDS = {
    "train": ("rl_training.cli.train", "train an agent from a config or from flags"),
    "eval": ("rl_training.cli.eval", "play episodes with a trained agent, or games against another player"),
    "tournament": (
        "rl_training.cli.tournament",
        "let agents play a game against each other, with Elo ratings",
    ),
    "play": ("rl_training.cli.play", "play a game against a trained agent in the terminal"),
    "record": ("rl_training.cli.record", "play episodes with trained agents and write them as a dataset"),
    "resume": ("rl_training.cli.resume", "continue a run from its last checkpoint"),
    "check-env": ("rl_training.cli.check_env", "check an environment before training"),
    "plan": ("rl_training.cli.plan", "predict which settings make a run faster on several cores"),
    "zoo": ("rl_training.cli.zoo", "list, show and run presets"),
    "benchmark": ("rl_training.cli.benchmark", "compare presets on many seeds, in tables and plots"),
    "dataset": ("rl_training.cli.dataset", "show, import, merge and split datasets"),
    "runs": ("rl_training.cli.runs", "list, show, compare and delete runs"),
    "export-results": ("rl_training.cli.export_results", "write the results of many runs as CSV or JSON"),
}

HELP = f"""usage: rl-training COMMAND [options]

commands:
{"".join(f"  {name:<15} {text}{chr(10)}" for name, (_, text) in COMMANDS.items())}
start here:
  rl-training train --config configs/ppo/cartpole.yaml
  rl-training train ppo --env-id CartPole-v1 --seed 3
  rl-training eval runs/RUN --num-episodes 20
  rl-training runs list

rl-training COMMAND --help shows its options; --debug shows the traceback of an error; --version the version.
"""


def run(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; see `rl_training.cli.main`."""
    _prepare_streams()
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from rl_training.version import __version__

        print(__version__)
        return 0
    try:
        os.getcwd()
    except OSError:  # the next import would fail
        print("error: the working folder no longer exists; change into another one", file=sys.stderr)
        return 2
    return _run(arguments[0], arguments[1:], debug)


def _run(command: str, arguments: list[str], debug: bool) -> int:
    from rl_training.cli.exit_codes import exit_code_of
    from rl_training.cli.plain_warnings import plain_warnings
    from rl_training.core.errors import UserError, did_you_mean

    def call() -> int:
        if command not in COMMANDS:
            raise UserError(f"unknown command '{command}'{did_you_mean(command, COMMANDS)}")
        with plain_warnings():
            code: int = importlib.import_module(COMMANDS[command][0]).run(arguments)
        return code

    return exit_code_of(call, debug=debug)


def _prepare_streams() -> None:
    """Open the null device for closed standard streams, as after `>&-`, so that no file of a run gets their number.

    Characters that a terminal cannot encode, such as ±, are replaced.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
