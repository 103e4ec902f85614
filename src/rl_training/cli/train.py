"""`rl-training train`: flags and YAML to a config, the config to a run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.lookup import find_algorithm, new_config
from rl_training.cli.arguments import Argument, Option, arguments_of, parse_values, print_help, wants_help
from rl_training.cli.env_flags import TWO_ENVIRONMENTS
from rl_training.cli.exit_codes import command_name
from rl_training.config import TrainConfig, config_from_dict, known_algorithms, load_config, read_settings
from rl_training.config.preprocessing import SETTINGS_OF
from rl_training.config.presets import known_as, preset_name, presets
from rl_training.core.errors import ConfigError, Interrupted, UserError, did_you_mean, printable
from rl_training.envs.factory import import_factory
from rl_training.experiment.checkpoints.folders import open_checkpoint
from rl_training.experiment.checkpoints.format import Checkpoint
from rl_training.experiment.checkpoints.taking_over import for_algorithm
from rl_training.experiment.checkpoints.trust import Trust
from rl_training.experiment.checkpoints.warm_start import check_trust, inherited_config
from rl_training.experiment.console import make_console
from rl_training.experiment.diagnosis import diagnose, summary
from rl_training.experiment.logs.metadata import read_metadata
from rl_training.experiment.logs.profile import RunProfile
from rl_training.experiment.logs.rows import is_evaluation, is_metrics_row, read_rows
from rl_training.experiment.start import TrainResult, train
from rl_training.experiment.video import can_record
from rl_training.lab.preset_scores import compare_run_with_results

HELP = """usage: rl-training train ALGORITHM --env-id ID [settings]
       rl-training train ALGORITHM --dataset PATH [settings]
       rl-training train --config FILE [settings]
       rl-training train --start-from RUN [settings]

algorithms:
  {algorithms}
  module:Class for an algorithm of your own

start here:
  rl-training train --config ppo/cartpole          a preset, one of {presets}: rl-training zoo list
  rl-training train ppo --env-id CartPole-v1       all settings at their defaults
  rl-training train ppo --env-id CartPole-v1 --total-timesteps 1e5 --num-envs 16 --learning-rate 1e-3

rl-training train --start-from RUN --learning-rate 1e-4 fine-tunes from the weights and settings of RUN.
rl-training train sac --start-from OFFLINE_RUN --dataset-fraction 0.5 continues online, and keeps its data.
rl-training train ALGORITHM --help lists its settings, and with --config FILE their values there. Those of ppo:
"""

NO_ALGORITHM = (
    "train needs an algorithm or a config: rl-training train ppo --env-id CartPole-v1, or rl-training train --config "
    "ppo/cartpole; algorithms are {algorithms}, or module:Class for your own; see rl-training train --help"
)

RUN_GROUPS = {
    "run": ("env_id", "seed", "total_timesteps", "output_dir", "device", "num_threads", "update_path"),
    "environments": (
        "num_envs", "env_backend", "env_kwargs", "env_wrappers", "max_episode_steps", "env_timeout", "rebuild_envs",
        "max_restarts", "use_action_masks", "critic_obs", "normalize_obs", "normalize_reward",
    ),
    "several processes and machines": (
        "engine", "env_groups", "lag", "max_policy_lag", "learner_shards", "num_samplers", "num_learners",
        "max_sampler_restarts", "ray_address", "ray_resources", "ray_placement",
    ),
    "learning from a dataset": (
        "dataset", "total_updates", "dataset_fraction", "held_out_fraction", "max_dataset_memory",
    ),
    "games with several agents": (
        "policies", "agent_ids", "opponents", "opponent_sampling", "opponent_update_every", "opponent_pool_size",
        "eval_against",
    ),
    "images": ("preprocessing", *SETTINGS_OF["atari"]),
    "evaluation and checkpoints": (
        "eval_every_timesteps", "num_eval_episodes", "best_by", "eval_deterministic", "max_eval_episode_steps",
        "checkpoint_every_timesteps", "keep_checkpoints",
    ),
    "logging": ("log_every_timesteps", "log_histograms_every", "info_keywords", "track"),
    "stopping early": ("stop_at_reward", "stop_after_stale_evals", "max_time"),
}  # fmt: skip
"""How `--help` groups the run-level settings; a test checks that each is in exactly one group."""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train an agent.

    rl-training train --config ppo/cartpole --seed 3

    rl-training train ppo --env-id CartPole-v1
    """

    algo: Annotated[str | None, Option(metavar="ALGORITHM", once=True)] = None
    """The algorithm, which may also be the first word: a name, or module:Class for an algorithm of your own."""
    config: Annotated[str | None, Option(metavar="FILE", once=True)] = None
    """YAML file or preset with settings; flags override them."""
    start_from: Annotated[str | None, Option(metavar="RUN", once=True)] = None
    """A run, or a saved agent, to fine-tune: the new run starts from its weights, statistics and settings; flags
    override the settings. Optimizer, counters and random streams are new; the old run is not changed. Another ALGORITHM
    may take over an agent learned from a dataset: td3 one of td3_bc or rebrac, sac one of cql, iql or awac, awac one of
    iql."""
    env_factory: Annotated[str | None, Option(metavar="MODULE:FUNCTION")] = None
    """A function that builds the environment, instead of --env-id; resume and eval need the flag as well."""
    trust_modules: bool = False
    """With --start-from: import the modules that someone else's run names for algorithm, environment, wrappers,
    encoder and schedules."""
    quiet: bool = False
    """Print only the run folder."""
    profile: bool = False
    """Print at the end how the time was spent, and save it as profile.json; timeline.png shows the last iterations."""


def run(argv: list[str]) -> int:
    """Train, and print where the run is and what to try next."""
    first = argv[0] if argv and not argv[0].startswith("-") else None
    prog = f"rl-training train {first}" if first else "rl-training train"
    rest = list[str]()
    flags = Train(**parse_values(arguments_of(Train), argv[1:] if first else argv, prog, rest))
    if first and flags.algo not in (None, first):
        raise UserError(f"'{first}' and --algo {flags.algo} both name an algorithm; give one of them")
    algo = first or flags.algo
    basis = _basis(flags, algo)
    base, chosen = basis.config, algo or (None if basis.config is None else basis.config.algo)
    if chosen is None and wants_help(rest):
        print(HELP.format(algorithms=", ".join(known_algorithms()), presets=len(presets())))
        chosen = "ppo"
    if chosen is None:
        raise UserError(NO_ALGORITHM.format(algorithms=", ".join(known_algorithms())))
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
    print_diagnosis(result)
    return 0


def config_from_flags(
    algo: str, base: TrainConfig | None, argv: Sequence[str], prog: str
) -> tuple[TrainConfig, set[str]]:
    """Return the config of `base`, or the defaults, with flags on top, and the settings that the flags name."""
    groups = _setting_groups(algo, {} if base is None else base.to_dict())
    if wants_help(argv):
        print_help(groups, prog, Train.__doc__ or "")
    settings = parse_values([argument for group in groups.values() for argument in group], argv, prog)
    if base is None:
        _refuse_no_source(algo, settings, prog)
    try:
        config = (base or new_config(algo, settings)).with_overrides(**settings)
    except ConfigError as error:
        raise ConfigError(error.problems, "settings") from None
    return config, set(settings)


def _refuse_no_source(algo: str, settings: Mapping[str, Any], prog: str) -> None:
    """Raise if neither an environment nor a dataset is named; `new_config` answers for algorithms that need data."""
    kind = find_algorithm(algo).config_class
    if kind.needs_dataset or not {"env_id", "dataset"}.isdisjoint(settings):
        return
    flags = "--env-id or --dataset" if kind.takes_dataset else "--env-id"
    raise UserError(f"{prog} needs {flags}; {prog} --help lists all flags")


def _setting_groups(algo: str, values: Mapping[str, Any]) -> dict[str, list[Argument]]:
    """Return all flags of `train` in groups; `values` are the settings of a config, which become the defaults."""
    groups = {name: arguments_of(TrainConfig, names, values) for name, names in RUN_GROUPS.items()}
    if not values:
        env_id, *others = groups["run"]
        groups["run"] = [replace(env_id, option=Option(hint="(unless a config names it)")), *others]
    own = arguments_of(find_algorithm(algo).config_class, values=values.get("algorithm"))
    return {"": arguments_of(Train), **groups, f"{algo.rpartition(':')[2]} settings": own}


@dataclass(frozen=True)
class Basis:
    """The settings that flags override: a config's, those of a run to fine-tune, or the defaults."""

    config: TrainConfig | None = None
    learned: Checkpoint | None = None
    """The checkpoint to start from."""
    preset: str | None = None
    """The name of the config, which may be a preset's."""


def _basis(flags: Train, algo: str | None) -> Basis:
    """Return the settings that other flags override, for the algorithm `algo` if one is named."""
    algorithm = None if algo is None else _typed_algorithm(algo)
    if flags.start_from is not None:
        if flags.config is not None:
            raise UserError(
                "--config and --start-from both have settings; give one of them, and flags on top"
            )
        learned = open_checkpoint(flags.start_from, Trust(algorithm, flags.trust_modules))
        learned = for_algorithm(learned, algorithm or learned.algorithm)
        return Basis(learned.config, learned)
    if flags.trust_modules:
        raise UserError(
            "--trust-modules is for --start-from; modules that you name yourself are imported without it"
        )
    if flags.config is None:
        return Basis()
    config = load_config(flags.config)
    if algorithm is not None and config.algo != algo:
        if not issubclass(algorithm, find_algorithm(config.algo)):
            raise UserError(_for_another("the config", config.algo, algo, "config"))
        # a config of its parent, read with the defaults of this class
        config = config_from_dict(
            read_settings(flags.config) | {"algo": algo}, flags.config, algorithm.config_class
        )
    return Basis(config, preset=preset_name(flags.config))


def _typed_algorithm(algo: str) -> type[Algorithm]:
    """Return the class of an algorithm that the user typed; raise an error that lists the algorithms."""
    known = known_algorithms()
    if algo not in known and ":" not in algo:
        if (config := known_as(algo)) is not None:
            raise UserError(f"'{algo}' is a config, not an algorithm; use --config {config}")
        near = did_you_mean(algo, known)
        raise UserError(
            f"unknown algorithm '{algo}'{near}{'' if near else ';'} algorithms are {', '.join(known)}, or module:Class "
            "for your own"
        )
    return find_algorithm(algo)


def _for_another(what: object, there: str, algo: str | None, kind: str) -> str:
    return f"{what} is for {there}, not for {algo}; leave out '{algo}' or use another {kind}"


@contextlib.contextmanager
def resumed_with(env_factory: str | None) -> Iterator[str]:
    """Yield the flags that other commands need for this run; an interrupted run is resumed with them as well."""
    flags = "" if env_factory is None else f" --env-factory {env_factory}"
    try:
        yield flags
    except Interrupted as interrupted:
        interrupted.flags = flags
        raise


def print_diagnosis(result: TrainResult) -> None:
    """Say in the last line that a run did badly, if it did."""
    run_dir = result.run_dir
    if result.paused:
        return
    try:
        rows = read_rows(run_dir / "metrics.jsonl", is_metrics_row)
        evaluations = read_rows(run_dir / "evaluations.jsonl", is_evaluation)
        good = _good_return(load_config(run_dir / "config.yaml"))
    except UserError:  # such as a log that is too large to read; the run itself is fine
        return
    fine_tuned = read_metadata(run_dir).get("started_from") is not None
    if findings := diagnose(rows, evaluations, fine_tuned=fine_tuned, good_return=good):
        print(f"\n{summary(findings)}", flush=True)


def _good_return(config: TrainConfig) -> float | None:
    """Return the return that is good enough: `stop_at_reward`, or the one that the environment was registered with."""
    if config.stop_at_reward is not None:
        return config.stop_at_reward
    known = gymnasium.registry.get(config.env_id.rpartition(":")[2])
    return None if known is None else known.reward_threshold


def print_result(result: TrainResult, flags: str = "") -> None:
    """Print the score, the run folder and the next commands, which need `flags`."""
    unit, budget = ("updates", "--total-updates") if result.offline else ("steps", "--total-timesteps")
    command, steps = command_name(), f"{result.metrics['global_step']:,} {unit}"
    run_dir = printable(result.run_dir)
    print()
    if result.paused:
        print(f"Paused after {steps}: {printable(result.stop_reason)}. Resume it with:")
        print(f"  {command} resume {run_dir}{flags}", flush=True)
        return
    if "eval/mean_reward" in result.metrics:
        score = f"{result.metrics['eval/mean_reward']:.1f} ± {result.metrics['eval/std_reward']:.1f}"
        games = ""
        if "eval/win_rate" in result.metrics:
            won, drawn = (result.metrics[f"eval/{name}_rate"] for name in ("win", "draw"))
            games = f", {won:.0%} of the games won, {drawn:.0%} drawn,"
        print(f"Evaluation return {score}{games} after {steps}")
    if result.stop_reason:
        print(f"Stopped early: {printable(result.stop_reason)}")
    print(f"Run folder        {run_dir}")
    print(f"Learning curve    {run_dir}/learning_curve.png")
    print("\nTry next:")
    if "eval/mean_reward" in result.metrics:
        print(f"  {command} eval {run_dir} --num-episodes 20{flags}")
    if result.offline:
        print(f"  {command} eval {run_dir} --on-dataset DATASET")
    if _can_record(result.run_dir):
        print(f"  {command} eval {run_dir} --record videos{flags}")
    print(f"  {command} resume {run_dir} {budget} {2 * result.metrics['global_step']}{flags}", flush=True)


def _can_record(run_dir: Path) -> bool:
    try:
        return can_record(load_config(run_dir / "config.yaml"))
    except UserError:  # somebody deleted it: the run is complete all the same
        return False
