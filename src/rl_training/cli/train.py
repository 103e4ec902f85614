"""`rl-training train`: flags and YAML to a config, the config to a run."""

from rl_training.cli.commands import command_name
from rl_training.cli.flags import parse_train_flags
from rl_training.config import TrainConfig, config_from_dict, known_algorithms, load_config
from rl_training.core.errors import UserError, did_you_mean, printable
from rl_training.core.presets import presets
from rl_training.experiment.console import make_console
from rl_training.experiment.profiling import RunProfile
from rl_training.experiment.runs import TrainResult, train

DESCRIPTION = """Train an agent.

rl-training train --config ppo/cartpole --seed 3

rl-training train ppo --env-id CartPole-v1"""

HELP = """usage: rl-training train ALGORITHM --env-id ID [settings]
       rl-training train --config FILE [settings]

algorithms:
  {algorithms}

start here:
  rl-training train --config ppo/cartpole          a preset, one of {presets}: see the folder configs
  rl-training train ppo --env-id CartPole-v1       everything at its default
  rl-training train ppo --env-id CartPole-v1 --total-timesteps 1e5 --num-envs 16 --learning-rate 1e-3

rl-training train ALGORITHM --help lists its settings, and with --config FILE their values there. Those of ppo:
"""


def run(argv: list[str]) -> int:
    """Train, and print where the run is and what to try next."""
    algo = argv[0] if argv and not argv[0].startswith("-") else None
    base, flags = _taken_config(argv[1:] if algo is not None else argv)
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
            f"the config is for {base.algo}, not for {chosen}; leave out '{chosen}' or use another config"
        )
    prog = f"rl-training train {algo}" if algo else "rl-training train"
    parsed = parse_train_flags(chosen, base, flags, prog, DESCRIPTION)
    config = config_from_dict(parsed["config"], "settings")
    profile = RunProfile() if parsed["profile"] else None
    result = train(
        config,
        callbacks=[] if profile is None else [profile],
        console=make_console(parsed["quiet"]),
        arguments=["rl-training", "train", *argv],
    )
    if parsed["quiet"]:
        print(result.run_dir)
        return 0
    print_result(result)
    if profile is not None:
        print(f"\n{profile.text()}", flush=True)
    return 0


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


def _taken_config(flags: list[str]) -> tuple[TrainConfig | None, list[str]]:
    """Return the config that `--config` names, which decides what other flags there are, and those flags."""
    rest, named = list[str](), list[str]()
    waiting = iter(flags)
    for flag in waiting:
        if flag.startswith("--config="):
            named.append(flag.partition("=")[2])
        elif flag == "--config":
            named.append(next(waiting, ""))
        else:
            rest.append(flag)
    if "" in named:
        raise UserError("--config needs a file; write --config configs/ppo/cartpole.yaml")
    if len(named) > 1:
        raise UserError(f"--config is given {len(named)} times; give one file, and flags on top of it")
    return (load_config(named[0]) if named else None), rest
