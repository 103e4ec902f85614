"""`rl-training train`: flags and YAML to a config, the config to a run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from rl_training.cli.arguments import Argument, Option, arguments_of, parse_values, print_help, wants_help
from rl_training.cli.env_flags import TWO_ENVIRONMENTS
from rl_training.cli.exit_codes import command_name
from rl_training.config import TrainConfig, algorithm_config_class, known_algorithms, load_config
from rl_training.config.preprocessing import SETTINGS_OF
from rl_training.config.presets import preset_name, presets
from rl_training.core.errors import ConfigError, Interrupted, UserError, did_you_mean, printable
from rl_training.envs.factory import import_factory
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.warm_start import check_trust, inherited_config
from rl_training.experiment.console import make_console
from rl_training.experiment.logs.profile import RunProfile
from rl_training.experiment.start import TrainResult, train
from rl_training.experiment.video import can_record
from rl_training.lab.preset_scores import compare_run_with_results

HELP = """usage: rl-training train ALGORITHM --env-id ID [settings]
       rl-training train --config FILE [settings]
       rl-training train --start-from RUN [settings]

algorithms:
  {algorithms}

start here:
  rl-training train --config ppo/cartpole          a preset, one of {presets}: rl-training zoo list
  rl-training train ppo --env-id CartPole-v1       all settings at their defaults
  rl-training train ppo --env-id CartPole-v1 --total-timesteps 1e5 --num-envs 16 --learning-rate 1e-3

rl-training train --start-from RUN --learning-rate 1e-4 fine-tunes from the weights and settings of RUN.
rl-training train ALGORITHM --help lists its settings, and with --config FILE their values there. Those of ppo:
"""

RUN_GROUPS = {
    "run": ("env_id", "seed", "total_timesteps", "output_dir", "device", "num_threads", "update_path"),
    "environments": (
        "num_envs", "env_backend", "env_kwargs", "env_wrappers", "max_episode_steps", "env_timeout", "rebuild_envs",
        "max_restarts", "use_action_masks", "normalize_obs", "normalize_reward",
    ),
    "images": ("preprocessing", *SETTINGS_OF["atari"]),
    "evaluation and checkpoints": (
        "eval_every_timesteps", "num_eval_episodes", "best_by", "eval_deterministic", "max_eval_episode_steps",
        "checkpoint_every_timesteps", "keep_checkpoints",
    ),
    "logging": ("log_every_timesteps", "info_keywords", "track"),
    "stopping early": ("stop_at_reward", "stop_after_stale_evals", "max_time"),
}  # fmt: skip
"""How `--help` groups the run-level settings; a test checks that each is in exactly one group."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train an agent.

    rl-training train --config ppo/cartpole --seed 3

    rl-training train ppo --env-id CartPole-v1
    """

    config: Annotated[str | None, Option(metavar="FILE", once=True)] = None
    """YAML file or preset with settings; flags override them."""
    start_from: Annotated[str | None, Option(metavar="RUN", once=True)] = None
    """A run, or a saved agent, to fine-tune: the new run starts from its weights, statistics and settings; flags
    override the settings. Optimizer, counters and random streams are new; the old run is not changed."""
    env_factory: Annotated[str | None, Option(metavar="MODULE:FUNCTION")] = None
    """A function that builds the environment, instead of --env-id; resume and eval need the flag as well."""
    trust_modules: bool = False
    """With --start-from: import the modules that someone else's run names for environment, wrappers, encoder and
    schedules."""
    quiet: bool = False
    """Print only the run folder."""
    profile: bool = False
    """Print at the end how the time was spent, and save it as profile.json."""


def run(argv: list[str]) -> int:
    """Train, and print where the run is and what to try next."""
    algo = argv[0] if argv and not argv[0].startswith("-") else None
    prog = f"rl-training train {algo}" if algo else "rl-training train"
    rest = list[str]()
    flags = Train(**parse_values(arguments_of(Train), argv[1:] if algo else argv, prog, rest))
    basis = _basis(flags)
    base = basis.config
    chosen = algo or (None if base is None else base.algo)
    if chosen is None and wants_help(rest):
        print(HELP.format(algorithms=", ".join(known_algorithms()), presets=len(presets())))
        chosen = "ppo"
    _check_algorithm(chosen, basis)
    assert chosen is not None
    factory = None
    if flags.env_factory is not None:
        if any(word.partition("=")[0] == "--env-id" for word in rest):
            raise UserError(TWO_ENVIRONMENTS)
        factory = import_factory(flags.env_factory)
        rest = [f"--env-id={flags.env_factory.partition(':')[2]}", *rest]
    config, named = config_from_flags(chosen, base, rest, prog)
    if basis.learned is not None:
        check_trust(basis.learned, config, named, trusted=flags.trust_modules)
        config = inherited_config(config, basis.learned, named)
    profile = RunProfile() if flags.profile else None
    with resumed_with(flags.env_factory) as again:
        result = train(
            config,
            factory=factory,
            learned=basis.learned,
            callbacks=[] if profile is None else [profile],
            console=make_console(flags.quiet),
            arguments=["rl-training", "train", *argv],
        )
    if flags.quiet:
        print(result.run_dir)
        return 0
    print_result(result, again)
    if basis.preset is not None and not result.paused:
        known = compare_run_with_results(basis.preset, config, result.run_dir)
        if known is not None:
            print(f"\n{known}", flush=True)
    if profile is not None:
        print(f"\n{profile.text()}", flush=True)
    return 0


def config_from_flags(
    algo: str, base: TrainConfig | None, argv: Sequence[str], prog: str
) -> tuple[TrainConfig, set[str]]:
    """Return the config of `base`, or the defaults, with flags on top, and the settings that the flags name."""
    groups = _setting_groups(algo, {} if base is None else base.to_dict())
    if wants_help(argv):
        print_help(groups, prog, Train.__doc__ or "")
    settings = parse_values([argument for group in groups.values() for argument in group], argv, prog)
    try:
        config = (base or TrainConfig(algo=algo, env_id="unnamed")).with_overrides(**settings)
    except ConfigError as error:
        raise ConfigError(error.problems, "settings") from None
    return config, set(settings)


def _setting_groups(algo: str, values: Mapping[str, Any]) -> dict[str, list[Argument]]:
    """Return all flags of `train` in groups; `values` are the settings of a config, which become the defaults."""
    config_class = algorithm_config_class(algo)
    assert config_class is not None
    groups = {name: arguments_of(TrainConfig, names, values) for name, names in RUN_GROUPS.items()}
    if not values:
        env_id, *others = groups["run"]
        groups["run"] = [replace(env_id, option=Option(hint="(unless a config names it)")), *others]
    own = arguments_of(config_class, values=values.get("algorithm"))
    return {"": arguments_of(Train), **groups, f"{algo} settings": own}


def _check_algorithm(chosen: str | None, basis: "Basis") -> None:
    """Raise an error unless an algorithm is chosen that exists, and that the config is for."""
    known = known_algorithms()
    if chosen is None:
        raise UserError(
            "train needs an algorithm or a config: rl-training train ppo --env-id CartPole-v1, or rl-training "
            f"train --config ppo/cartpole; algorithms are {', '.join(known)}; see rl-training train --help"
        )
    if chosen not in known:
        near = did_you_mean(chosen, known)
        raise UserError(
            f"unknown algorithm '{chosen}'{near}{'' if near else ';'} algorithms are {', '.join(known)}"
        )
    if basis.config is not None and basis.config.algo != chosen:
        what, kind = ("the config", "config") if basis.learned is None else (basis.learned.path, "run")
        remedy = f"leave out '{chosen}' or use another {kind}"
        raise UserError(f"{what} is for {basis.config.algo}, not for {chosen}; {remedy}")


@dataclass(frozen=True)
class Basis:
    """The settings that flags override: a config's, those of a run to fine-tune, or the defaults."""

    config: TrainConfig | None = None
    learned: Checkpoint | None = None
    """The checkpoint to start from."""
    preset: str | None = None
    """The name of the config, which may be a preset's."""


def _basis(flags: Train) -> Basis:
    """Return the settings that other flags override."""
    if flags.start_from is None:
        if flags.trust_modules:
            raise UserError(
                "--trust-modules is for --start-from; modules that you name yourself are imported without it"
            )
        if flags.config is None:
            return Basis()
        return Basis(load_config(flags.config), preset=preset_name(flags.config))
    if flags.config is not None:
        raise UserError("--config and --start-from both have settings; give one of them, and flags on top")
    learned = open_checkpoint(flags.start_from)
    return Basis(learned.config, learned)


@contextlib.contextmanager
def resumed_with(env_factory: str | None) -> Iterator[str]:
    """Yield the flags that other commands need for this run; an interrupted run is resumed with them as well."""
    flags = "" if env_factory is None else f" --env-factory {env_factory}"
    try:
        yield flags
    except Interrupted as interrupted:
        interrupted.flags = flags
        raise


def print_result(result: TrainResult, flags: str = "") -> None:
    """Print the score, the run folder and the next commands, which need `flags`."""
    command, steps = command_name(), f"{result.metrics['global_step']:,} steps"
    run_dir = printable(result.run_dir)
    print()
    if result.paused:
        print(f"Paused after {steps}: {printable(result.stop_reason)}. Resume it with:")
        print(f"  {command} resume {run_dir}{flags}", flush=True)
        return
    if "eval/mean_reward" in result.metrics:
        score = f"{result.metrics['eval/mean_reward']:.1f} ± {result.metrics['eval/std_reward']:.1f}"
        print(f"Evaluation return {score} after {steps}")
    if result.stop_reason:
        print(f"Stopped early: {printable(result.stop_reason)}")
    print(f"Run folder        {run_dir}")
    print(f"Learning curve    {run_dir}/learning_curve.png")
    print("\nTry next:")
    print(f"  {command} eval {run_dir} --num-episodes 20{flags}")
    if can_record(load_config(result.run_dir / "config.yaml")):
        print(f"  {command} eval {run_dir} --record videos{flags}")
    longer = 2 * result.metrics["global_step"]
    print(f"  {command} resume {run_dir} --total-timesteps {longer}{flags}", flush=True)
