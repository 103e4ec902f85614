"""The interface that every algorithm shares: construct, learn, predict, evaluate, plot, save, load."""

import contextlib
import copy
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from gymnasium import Space

from rl_training.algorithms.components import Actor, BuildContext, Parts, StatefulLearner
from rl_training.algorithms.losses import Loss, LossFunction, checked_loss
from rl_training.config import AlgorithmConfig, TrainConfig, config_from_dict, load_config, read_settings
from rl_training.config.presets import find_preset, preset_name, presets
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.protocols import ExperienceSource, Policy
from rl_training.core.types import Array, PolicyState
from rl_training.models.encoders import EncoderClass

if TYPE_CHECKING:  # declared upward imports: methods import the experiment layer when they are called
    from pathlib import Path

    from matplotlib.figure import Figure

    from rl_training.algorithms.keywords import ConfigOrEnv
    from rl_training.datasets.dataset import Dataset
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.agent import Agent
    from rl_training.experiment.dataset_evaluation import DatasetEvaluation
    from rl_training.runtime.callbacks import Callback

__all__ = ["Algorithm", "Parts"]


class Algorithm:
    """Base of all algorithms: no mathematics, no loop, no files of its own.

    `PPO("CartPole-v1", seed=1, num_envs=8, learning_rate=1e-3)`. The first argument is the environment, as a Gymnasium
    id or as a function that builds a new environment each time it is called (with the setting `env_kwargs`), or a
    `TrainConfig`. Keywords are settings of the run or of the algorithm, checked as in YAML; they override the config's.
    `encoder` is a name or your own class. With a config, `env` replaces its environment. `PPO(..., loss=function)`
    trains with a loss of your own; so does a subclass with the class attribute `loss`. `losses` lists the names.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[AlgorithmConfig]]
    action_spaces: ClassVar[tuple[type[Space[Any]], ...]]
    """The action spaces it supports."""
    bounded_actions: ClassVar[bool] = False
    """Whether continuous actions must have finite bounds."""
    takes_action_masks: ClassVar[bool] = False
    """Whether its policy uses action masks."""
    needs_critic_space: ClassVar[bool] = False
    """Whether it needs something that only critics read: of a game with several agents, or named by `critic_obs`."""

    def __init__(
        self,
        config: "ConfigOrEnv" = None,
        *others: object,
        env: "EnvFactory | str | None" = None,
        encoder: EncoderClass | str | None = None,
        **settings: Any,
    ) -> None:
        from rl_training.algorithms.lookup import check_class
        from rl_training.experiment.building import UserObjects

        _refuse_policy(type(self).__name__, config, others)
        if isinstance(encoder, str):
            settings["encoder"], encoder = encoder, None
        check_class(type(self))
        losses = type(self).take_losses(settings)
        resolved, factory = _resolved(type(self), config, env, settings)
        self._given = UserObjects(type(self), factory, encoder, losses)
        self.config = self._given.name_encoder(resolved)
        self._agent: Agent | None = None
        self._run_dir: PathLike[str] | None = None
        """Folder of the last run, whose last checkpoint `agent` reads."""
        self._unfinished: PathLike[str] | None = None
        self._begins_anew = False
        """Whether the first run starts from the agent's weights only, with new counters and optimizer state."""

    @classmethod
    def from_preset(cls, name: str, **settings: Any) -> Self:
        """Return a model with the settings of a preset such as `ppo/cartpole`; keywords override them.

        `rl-training zoo list` shows all presets.
        """
        from rl_training.algorithms.lookup import algorithm_name, check_class, find_algorithm

        own, path = algorithm_name(cls), find_preset(name)
        config = load_config(path)
        meant = find_algorithm(config.algo)
        if not issubclass(cls, meant):
            similar = f"{own}/{preset_name(name).rpartition('/')[2]}"
            other = f", or {cls.__name__}.from_preset('{similar}')" if similar in presets() else ""
            raise UserError(
                f"preset '{name}' is for {config.algo}, not for {own}; use "
                f"{meant.__name__}.from_preset('{name}'){other}"
            )
        if cls is not meant:  # a preset of its parent, read with the defaults of this class
            check_class(cls)
            config = config_from_dict(read_settings(path) | {"algo": own}, str(path), cls.config_class)
        return cls(config, **settings)

    @staticmethod
    def losses(settings: Any) -> dict[str, Loss]:
        """Return the built-in losses by name; a class attribute or an argument of the same name replaces one.

        A class of your own may override it, for losses that depend on its settings.
        """
        return {}

    @classmethod
    def take_losses(cls, settings: dict[str, Any]) -> dict[str, LossFunction]:
        """Remove the losses from keyword arguments, and return those that were given."""
        found = {
            name: checked_loss(name, settings.pop(name, None)) for name in cls.losses(cls.config_class())
        }
        return {name: function for name, function in found.items() if function is not None}

    @staticmethod
    def build_actor(settings: Any, context: BuildContext) -> Actor[Any]:
        """Return the policy and what it needs to act; each algorithm implements it."""
        raise TypeError(
            "Algorithm is abstract; use PPO or another entry of rl_training.algorithms.ALGORITHMS"
        )

    @staticmethod
    def build_source(settings: Any, context: BuildContext, actor: Actor[Any]) -> ExperienceSource[Any]:
        """Return where the learner's batches come from; each algorithm implements it."""
        raise NotImplementedError("an algorithm must define build_source")

    @staticmethod
    def build_learner(settings: Any, context: BuildContext, actor: Actor[Any]) -> StatefulLearner:
        """Return the update rule; each algorithm implements it."""
        raise NotImplementedError("an algorithm must define build_learner")

    @classmethod
    def build(cls, settings: Any, context: BuildContext) -> Parts:
        """Return all parts of a run; the actor comes first, as the others are built for it."""
        actor = cls.build_actor(settings, context)
        source = cls.build_source(settings, context, actor)
        return Parts(actor, source, cls.build_learner(settings, context, actor))

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        total_updates: int | None = None,
        callbacks: Sequence["Callback"] = (),
        progress: bool | Literal["auto"] = "auto",
    ) -> Self:
        """Train for `total_timesteps` (default: the setting) in a new run folder; return self.

        A model that learns from a dataset alone trains for `total_updates` instead. Called again, or after `load`, it
        continues from the agent's current state. After an interruption, and without a number, it resumes the same run
        up to its budget. However training ends, also by Ctrl-C or an error, the model is then the agent of the last
        checkpoint; during training, `agent` is the one being trained. `progress` shows a progress bar; `auto` does so
        in terminals and notebooks.
        """
        from rl_training.experiment.agent_copies import checkpoint_to_continue
        from rl_training.experiment.console import python_console
        from rl_training.experiment.resume import resume
        from rl_training.experiment.start import Follow, train

        _refuse_losses_of(self)
        source = contextlib.ExitStack()  # what is needed until the run has restored its state
        follow = Follow(self._become, source.close)
        callbacks = [follow, *callbacks]
        parts: dict[str, Any] = self._given.as_arguments() | {"console": python_console(progress)}
        paused = True  # unless it comes to its end
        budget = self._budget(total_timesteps, total_updates)
        try:
            if self._unfinished is not None and budget is None:
                max_time = self.config.max_time
                result = resume(self._unfinished, max_time=max_time, callbacks=callbacks, **parts)
            else:
                with source:
                    copy = checkpoint_to_continue(self._agent, self._run_dir)
                    config, origin = self._begun(source.enter_context(copy), budget)
                    result = train(config, callbacks=callbacks, **origin, **parts)
            paused = result.paused
            self._unfinished = result.run_dir if paused else None  # perhaps before its first checkpoint
        finally:
            if follow.run_dir is not None:  # otherwise it did not come to its first checkpoint
                self._run_dir, self._agent = follow.run_dir, None
                self._unfinished = follow.run_dir if paused else None
                with contextlib.suppress(Exception):  # now, as the folder may be gone when it is asked for
                    self._become(self.agent)
        return self

    def _budget(self, total_timesteps: int | None, total_updates: int | None) -> int | None:
        """Return the budget that was given; raise if it is not what the run counts."""
        offline = self.config.offline
        wrong, right = (total_timesteps, total_updates) if offline else (total_updates, total_timesteps)
        if wrong is not None:
            counts = (
                "updates; use learn(total_updates=N)" if offline else "steps; use learn(total_timesteps=N)"
            )
            what = "with a dataset" if offline else "without a dataset"
            if self.config.dataset is not None and not offline:
                what = f"with dataset_fraction {self.config.dataset_fraction:g}"
            raise UserError(f"{type(self).__name__} {what} counts {counts}")
        return right

    def _begun(self, start_from: Any, given: int | None) -> tuple[TrainConfig, dict[str, Any]]:
        """Return the config of the next run, and the keyword arguments of `train` that say what it starts from."""
        from rl_training.experiment.checkpoints.folders import open_checkpoint
        from rl_training.experiment.checkpoints.taking_over import for_algorithm, takes_over
        from rl_training.experiment.checkpoints.trust import Trust
        from rl_training.experiment.checkpoints.warm_start import inherited_config

        name = "total_updates" if self.config.offline else "total_timesteps"
        budget = getattr(self.config, name) if given is None else given
        if start_from is None:
            return self.config.with_overrides(**{name: budget}), {}
        if self.config.env_id or not self.config.offline:
            self.agent.environment()  # a loaded agent may have none, or one from a module that is not trusted
        permission = self.agent.permission
        permission.refuse_schedules(self.config)
        permission.refuse_counts(self.config)
        permission.refuse_dataset(self.config)
        permission.refuse_players(self.config)
        if self._begins_anew and self._run_dir is None:
            config = self.config.with_overrides(**{name: budget})
            learned = open_checkpoint(start_from, Trust(type(self), permission.granted))
            if takes_over(type(self), learned):
                encoder = self._given.encoder
                learned = for_algorithm(
                    learned, type(self), encoder=encoder, granted=permission.granted, given=permission.given
                )
            return inherited_config(config, learned, permission.given), {"learned": learned}
        if self.agent.counts_updates != self.config.offline and self.agent.timesteps:
            raise UserError(
                f"{type(self).__name__} cannot continue with another kind of data, as it counts "
                f"{'updates' if self.agent.counts_updates else 'steps'} so far; start a new run from its weights: "
                f"{type(self).__name__}.start_from(path, ...)"
            )
        config = self.config.with_overrides(**{name: self.agent.timesteps + budget})
        return config, {"start_from": start_from, "trust_modules": permission.granted}

    def _become(self, agent: "Agent") -> None:
        self._agent = agent

    def predict(
        self,
        obs: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[Array, PolicyState | None]:
        """Return the action, in the environment's units, and the policy's state, for one observation or a batch.

        A recurrent policy takes the `state` that the last call returned and resets it where `episode_start` is true;
        for other policies the state is None. `action_masks` are true for allowed actions, and needed only if the
        observation does not contain them.
        """
        return self.agent.act(
            obs, state, episode_start, deterministic=deterministic, action_masks=action_masks
        )

    def evaluate(
        self,
        num_episodes: int = 10,
        *,
        deterministic: bool | None = None,
        env: "EnvFactory | str | None" = None,
        against: Any = None,
        games: int = 200,
        seats: str = "all",
        random_openings: int = 0,
    ) -> dict[str, Any]:
        """Play `num_episodes` in new environments; return `mean_reward`, `std_reward` and more.

        `env` is another environment with the same spaces: an id, or a function that builds one. With `against` it
        plays `games` against another player instead, and also returns how many were won, drawn and lost, with 95%
        intervals, in total and in `seats` by seat. A player is `random`, `self`, a run or saved agent,
        `module:function`, a model, or a function of an observation and a mask. The first `random_openings` moves of
        each game are random: two players that never sample play only one game from each seat.
        """
        if against is None:
            return self.agent.evaluate(num_episodes, deterministic=deterministic, env=env)
        from rl_training.experiment.games.agent_matches import evaluate_against

        return evaluate_against(
            self.agent,
            against,
            games=games,
            seats=seats,
            random_openings=random_openings,
            deterministic=deterministic,
            env=env,
        )

    def evaluate_on(
        self,
        dataset: "str | Dataset",
        *,
        num_updates: int = 20_000,
        refits: int = 0,
        gamma: float | None = None,
        deterministic: bool | None = None,
        seed: int = 0,
    ) -> "DatasetEvaluation":
        """Estimate the discounted return from a dataset, by fitted Q evaluation, without an environment.

        The interval resamples start states of one fit, or with `refits` (such as 10) it is that of as many fits to
        resampled episodes. Compare `estimate`, `low` and `high` with those of `behaviour`.
        """
        from rl_training.experiment.dataset_evaluation import evaluate_on_dataset

        return evaluate_on_dataset(
            self.agent,
            dataset,
            num_updates=num_updates,
            refits=refits,
            gamma=gamma,
            deterministic=deterministic,
            seed=seed,
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the agent as a checkpoint folder of safetensors and JSON, which cannot run code when loaded."""
        self.agent.save(path)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        env: "EnvFactory | str | None" = None,
        encoder: EncoderClass | None = None,
        device: str | None = None,
        trust_modules: bool = False,
        **overrides: Any,
    ) -> Self:
        """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of a run.

        It predicts without its environment, which is built only to evaluate or to train. `env` replaces the
        environment: an id, or a function that builds one. Modules that the saved agent names are imported only if you
        trained it yourself, or with `trust_modules=True`. `overrides` replace settings of the run or the algorithm,
        and its losses.
        """
        return cls._loaded(path, env, encoder, device, trust_modules, overrides)

    @classmethod
    def _loaded(
        cls,
        path: str | PathLike[str],
        env: "EnvFactory | str | None" = None,
        encoder: EncoderClass | None = None,
        device: str | None = None,
        trust_modules: bool = False,
        overrides: dict[str, Any] | None = None,
        *,
        for_new_run: bool = False,
    ) -> Self:
        from rl_training.experiment.loading import load_agent

        agent = load_agent(
            path,
            algorithm=None if cls is Algorithm else cls,
            env=env,
            encoder=encoder,
            trust_modules=trust_modules,
            overrides=(overrides or {}) | ({} if device is None else {"device": device}),
            for_new_run=for_new_run,
        )
        assert agent.given.algorithm is not None
        model = agent.given.algorithm(
            agent.config, env=agent.given.factory, encoder=encoder, **agent.given.losses
        )
        assert isinstance(model, cls)
        model._become(agent)
        return model

    @classmethod
    def start_from(cls, path: str | PathLike[str], **options: Any) -> Self:
        """Return a model that fine-tunes the agent at `path`: `learn` starts a new run from its weights and settings.

        Takes the same arguments as `load`. Unlike after `load`, `learn` starts with a new optimizer, new counters and
        new random streams: `PPO.start_from("runs/RUN", learning_rate=1e-4).learn()`. An agent that learned from a
        dataset may continue online: `SAC.start_from("runs/RUN_OF_IQL", dataset_fraction=0.5).learn()`.
        """
        names = ("env", "encoder", "device", "trust_modules")
        given = {name: options.pop(name) for name in names if name in options}
        model = cls._loaded(path, **given, overrides=options, for_new_run=True)
        model._begins_anew = True
        return model

    @property
    def env_id(self) -> str:
        """Id of the environment, or the name of a function that builds it."""
        return self.config.env_id

    @property
    def policy(self) -> "Policy":
        """The policy: of the last checkpoint, or of the run in progress; before `learn`, with initial weights."""
        return self.agent.policy

    @property
    def run_dir(self) -> "Path | None":
        """Folder of the last run, or of the run that the agent was loaded from; None if there is none."""
        from rl_training.experiment.run_folder import run_folder_of

        return run_folder_of(self._run_dir or (self._agent.path if self._agent is not None else None))

    def plot(self, path: str | PathLike[str] | None = None) -> "Figure":
        """Return the learning curve of the last run as a matplotlib figure; with `path`, also save it there."""
        from rl_training.experiment.logs.curves import learning_curve

        if self.run_dir is None:
            raise UserError("there is no run to plot yet; call learn() first")
        figure: Figure = learning_curve(self.run_dir, f"{self.config.algo} on {self.config.task}", path)
        return figure

    def __repr__(self) -> str:
        facts = {"env_id": repr(self.env_id)} if self.env_id or self.config.dataset is None else {}
        if self.config.dataset is not None:
            facts = {"dataset": repr(self.config.dataset)}
        facts["seed"] = str(self.config.seed)
        count = "updates" if self.config.offline else "timesteps"
        facts[count] = f"{0 if self._agent is None else self._agent.timesteps:_}"
        with contextlib.suppress(Exception):  # the run folder may be damaged or gone
            from rl_training.experiment.records.read import read_run

            best = None if self.run_dir is None else read_run(self.run_dir).best
            facts |= {} if best is None else {"best": f"{best:.1f}"}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in facts.items())})"

    @property
    def agent(self) -> "Agent":
        """What acts: of the last checkpoint, or of the run in progress; before `learn`, with initial weights."""
        if self._agent is None:
            from rl_training.experiment.loading import load_agent, new_agent

            given = self._given
            if self._run_dir is None:
                self._agent = new_agent(self.config, given)
            else:
                self._agent = load_agent(
                    self._run_dir,
                    algorithm=given.algorithm,
                    env=given.factory,
                    encoder=given.encoder,
                    losses=given.losses,
                    trust_modules=True,  # this process has just written it
                    probe=False,
                )
        return self._agent

    def __getstate__(self) -> dict[str, Any]:
        """Return what to pickle: all that `save` keeps, no open files; raise an error for classes without a name."""
        from rl_training.experiment.agent_copies import check_picklable

        check_picklable(self._given)
        return self._content()

    def __setstate__(self, content: dict[str, Any]) -> None:
        from rl_training.experiment.agent_copies import existing_folder

        vars(self).update(content)
        self._unfinished = existing_folder(self._unfinished)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        shared = {"_given": self._given}  # code is shared, not copied
        other.__setstate__(copy.deepcopy(self._content() | dict.fromkeys(shared), memo) | shared)
        return other

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def _content(self) -> dict[str, Any]:
        """Return the attributes with the agent loaded, so that a copy does not depend on the run folder."""
        if self._agent is None and self._run_dir is None:
            return dict(vars(self))
        return vars(self) | {"_agent": self.agent, "_run_dir": None}


def _resolved(
    algorithm: type[Algorithm],
    first: "ConfigOrEnv",
    env: "EnvFactory | str | None",
    settings: dict[str, Any],
) -> "tuple[TrainConfig, EnvFactory | None]":
    """Return the config of a new model, and the function that builds its environment, if one was given."""
    from rl_training.algorithms.lookup import algorithm_name, config_for
    from rl_training.envs.factory import checked_factory

    name = algorithm.__name__
    if first is not None and not isinstance(first, TrainConfig):
        if env is not None:
            raise UserError(f"{name} got two environments: {first!r} and env={env!r}; give one of them")
        first, env = None, first
    if isinstance(env, str):
        if settings.setdefault("env_id", env) != env:
            raise UserError(
                f"{name} got two environments: '{env}' and env_id='{settings['env_id']}'; give one"
            )
        env = None
    factory = None if env is None else checked_factory(env)
    config = first
    if config is None:
        dataset = settings.get("dataset")
        if algorithm.config_class.needs_dataset and dataset is None:
            raise UserError(f'{name} needs a dataset: {name}(dataset="path/to/dataset")')
        if factory is None and "env_id" not in settings and dataset is None:
            raise UserError(
                f'{name} needs an environment: {name}("CartPole-v1"), or a function that builds one'
            )
        known = {"env_id": "unnamed"} if dataset is None else {"dataset": dataset}
        config = TrainConfig(algo=algorithm_name(algorithm), **known, algorithm=algorithm.config_class())
        if factory is not None or dataset is None:
            settings.setdefault("env_id", _name_of(factory))
    config = config_for(algorithm, config)
    try:
        return config.with_overrides(**settings), factory
    except ConfigError as error:
        raise ConfigError(error.problems, name) from None


def _refuse_losses_of(model: Algorithm) -> None:
    """Raise if a loss was assigned to a model, where it would have no effect."""
    for name in vars(model).keys() & type(model).losses(model.config.algorithm).keys():
        kind = type(model).__name__
        raise UserError(
            f"{name} was assigned to the model, which has no effect; use {kind}(..., {name}=...), or "
            f"{kind}.load(path, {name}=...) to continue an agent"
        )


def _refuse_policy(name: str, first: object, others: tuple[object, ...]) -> None:
    """Raise if an algorithm is called as in other libraries, with a policy before the environment."""
    if isinstance(first, str) and first.endswith("Policy"):
        raise UserError(
            f'{name} takes no policy: write {name}("CartPole-v1"); the network follows from the spaces, encoder and '
            "hidden_sizes"
        )
    if others:
        raise UserError(
            f"{name} takes one environment and settings by keyword, but got {others[0]!r} as well"
        )


def _name_of(factory: Any) -> str:
    """Return a name for the environment that a function builds: the function's own, or `custom` for a lambda."""
    while isinstance(factory, partial):
        factory = factory.func
    name = getattr(factory, "__name__", type(factory).__name__)
    return "custom" if name == "<lambda>" else str(name)
