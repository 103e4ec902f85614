"""The commands of `rl-training`. Imports nothing heavy until one is chosen."""

import contextlib
import errno
import importlib
import os
import shutil
import sys
from pathlib import Path

COMMANDS = {
    "train": ("rl_training.cli.train", "train an agent from a config or from flags"),
    "eval": ("rl_training.cli.eval", "play episodes with a trained agent, as numbers or as a video"),
    "resume": ("rl_training.cli.resume", "continue a run from its last checkpoint"),
    "check-env": ("rl_training.cli.check_env", "check an environment before training"),
    "zoo": ("rl_training.cli.zoo", "list, show and run presets"),
    "benchmark": ("rl_training.cli.benchmark", "compare presets on many seeds, in tables and plots"),
    "runs": ("rl_training.cli.runs", "list, show, compare and delete runs"),
    "export-results": ("rl_training.cli.export_results", "write the results of many runs as CSV or JSON"),
}

NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)

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
    from rl_training.core.errors import Interrupted, RunFault, UserError, did_you_mean, printable

    if command not in COMMANDS:
        unknown = UserError(f"unknown command '{command}'{did_you_mean(command, COMMANDS)}")
        return _report(unknown, 2, debug)
    try:
        from rl_training.cli.plain_warnings import plain_warnings

        with plain_warnings():
            code: int = importlib.import_module(COMMANDS[command][0]).run(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _report(error, 2, debug)
    except RunFault as error:
        return _report(error, 1, debug)
    except Interrupted as interrupted:
        command = f"{command_name()} resume {interrupted.run_dir}"
        print(printable(f"\n{interrupted}. Resume it with:\n  {command}"), file=sys.stderr)
        return interrupted.code
    except KeyboardInterrupt as stop:
        print(printable(stop) if str(stop) else "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has exited, as in `| head`
        # so that the last flush does not raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _report_unexpected(error, debug)


def _report_unexpected(error: Exception, debug: bool) -> int:
    """Report an unexpected exception; lack of memory and a full disk get their own messages."""
    from rl_training.core.errors import NO_MEMORY, UserError, is_out_of_memory, text_of

    if is_out_of_memory(error):
        refused = UserError(NO_MEMORY)
        refused.__cause__ = error
        return _report(refused, 2, debug)
    if isinstance(error, OSError) and error.filename is None and error.errno in NO_ROOM:
        # of the standard output, as errors of files have a file name
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error = OSError(f"the standard output cannot be written: {error.strerror}")
        return _report(error, 1, debug)
    if not debug:
        error = RuntimeError(
            f"{type(error).__name__}: {text_of(error)} (run again with --debug for the traceback)"
        )
    return _report(error, 1, debug)


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


def command_name() -> str:
    """Return how to call this command from here, whether or not it is on the path."""
    called = Path(sys.argv[0])
    if called.name != "rl-training":
        return "python -m rl_training.cli"
    return "rl-training" if shutil.which("rl-training") else os.path.relpath(called)


def _report(error: Exception, code: int, debug: bool) -> int:
    from rl_training.core.errors import printable

    text = f"error: {printable(error)}\n"
    if debug:
        import traceback

        text = printable("".join(traceback.format_exception(error)))
    with contextlib.suppress(OSError):  # the error stream itself is broken
        print(text, end="", file=sys.stderr, flush=True)
    return code
