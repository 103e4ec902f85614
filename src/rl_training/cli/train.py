"""`rl-training train`: flags and YAML to a config, the config to a run."""

from dataclasses import dataclass

from rl_training.cli.commands import command_name
from rl_training.cli.flags import named_settings, parse_train_flags, taken_flag
from rl_training.config import TrainConfig, config_from_dict, known_algorithms, load_config
from rl_training.config.presets import preset_name, presets
from rl_training.core.errors import UserError, did_you_mean, printable
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.warm_start import refuse_start, taken_over
from rl_training.experiment.console import make_console
from rl_training.experiment.logs.profile import RunProfile
from rl_training.experiment.start import TrainResult, train
from rl_training.lab.preset_scores import compare_run_with_results

DESCRIPTION = """Train an agent.

rl-training train --config ppo/cartpole --seed 3

rl-training train ppo --env-id CartPole-v1"""

HELP = """usage: rl-training train ALGORITHM --env-id ID [settings]
       rl-training train --config FILE [settings]
       rl-training train --start-from RUN [settings]

algorithms:
  {algorithms}

start here:
  rl-training train --config ppo/cartpole          a preset, one of {presets}: see the folder configs
  rl-training train ppo --env-id CartPole-v1       everything at its default
  rl-training train ppo --env-id CartPole-v1 --total-timesteps 1e5 --num-envs 16 --learning-rate 1e-3

rl-training train --start-from RUN --learning-rate 1e-4 begins a new run with what RUN has learned, by its settings.
rl-training train ALGORITHM --help lists its settings, and with --config FILE their values there. Those of ppo:
"""


def run(argv: list[str]) -> int:
    """Train, and print where the run is and what to try next."""
    algo = argv[0] if argv and not argv[0].startswith("-") else None
    basis, flags = _basis(argv[1:] if algo is not None else argv)
    base = basis.config
    chosen = algo or (base.algo if base is not None else None)
    if chosen is None:
        if {"-h", "--help"} & set(flags):
            print(HELP.format(algorithms=", ".join(known_algorithms()), presets=len(presets())))
            chosen = "ppo"
        else:
            raise UserError(
                "train needs an algorithm or a config: rl-training train ppo --env-id CartPole-v1, or rl-training "
                f"train --config ppo/cartpole; algorithms are {', '.join(known_algorithms())}; rl-training train "
                "--help tells more"
            )
    if chosen not in known_algorithms():
        raise UserError(f"unknown algorithm '{chosen}'{did_you_mean(chosen, known_algorithms())}")
    if base is not None and base.algo != chosen:
        raise UserError(
            f"{basis.what} is for {base.algo}, not for {chosen}; leave out '{chosen}' or use another {basis.kind}"
        )
    prog = f"rl-training train {algo}" if algo else "rl-training train"
    parsed = parse_train_flags(chosen, base, flags, prog, DESCRIPTION)
    config = config_from_dict(parsed["config"], "settings")
    if basis.learned is not None:
        named = named_settings(flags)
        refuse_start(basis.learned, config, named, trusted=basis.trusted)
        config = taken_over(config, basis.learned, named)
    profile = RunProfile() if parsed["profile"] else None
    result = train(
        config,
        learned=basis.learned,
        callbacks=[] if profile is None else [profile],
        console=make_console(parsed["quiet"]),
        arguments=["rl-training", "train", *argv],
    )
    if parsed["quiet"]:
        print(result.run_dir)
        return 0
    print_result(result)
    if basis.preset is not None and not result.paused:
        known = compare_run_with_results(basis.preset, config, result.run_dir)
        if known is not None:
            print(f"\n{known}", flush=True)
    if profile is not None:
        print(f"\n{profile.text()}", flush=True)
    return 0


@dataclass(frozen=True)
class Basis:
    """What flags go on top of: a config, the settings of a run that the new one starts from, or nothing."""

    config: TrainConfig | None = None
    learned: Checkpoint | None = None
    trusted: bool = False
    preset: str | None = None
    """The name of the config, if it may be a preset's."""

    @property
    def kind(self) -> str:
        """What it is called."""
        return "config" if self.learned is None else "run"

    @property
    def what(self) -> str:
        """Which it is."""
        return "the config" if self.learned is None else str(self.learned.path)


def _basis(flags: list[str]) -> tuple[Basis, list[str]]:
    """Return what other flags go on top of, and those flags."""
    config, rest = taken_flag(flags, "--config", "file", "configs/ppo/cartpole.yaml")
    run_dir, rest = taken_flag(rest, "--start-from", "run", "runs/RUN")
    trusted = "--trust-modules" in rest
    rest = [flag for flag in rest if flag != "--trust-modules"]
    if run_dir is None:
        if trusted:
            raise UserError(
                "--trust-modules is for --start-from; what you name yourself is imported without it"
            )
        return (Basis() if config is None else Basis(load_config(config), preset=preset_name(config))), rest
    if config is not None:
        raise UserError("--config and --start-from both have settings; give one of them, and flags on top")
    learned = open_checkpoint(run_dir)
    return Basis(learned.config, learned, trusted), rest


def print_result(result: TrainResult) -> None:
    """Tell the score, the folder and the next commands."""
    command, steps = command_name(), f"{result.metrics['global_step']:,} steps"
    run_dir = printable(result.run_dir)
    print()
    if result.paused:
        print(f"Paused after {steps}: {printable(result.stop_reason)}. Go on with:")
        print(f"  {command} resume {run_dir}", flush=True)
        return
    if "eval/mean_reward" in result.metrics:
        score = f"{result.metrics['eval/mean_reward']:.1f} ± {result.metrics['eval/std_reward']:.1f}"
        print(f"Evaluation return {score} after {steps}")
    if result.stop_reason:
        print(f"Stopped early: {printable(result.stop_reason)}")
    print(f"Run folder        {run_dir}")
    print(f"Learning curve    {run_dir}/learning_curve.png")
    print("\nTry next:")
    print(f"  {command} eval {run_dir} --num-episodes 20")
    print(f"  {command} eval {run_dir} --record videos")
    longer = 2 * result.metrics["global_step"]
    print(f"  {command} resume {run_dir} --total-timesteps {longer}", flush=True)
