"""The public face that every algorithm shares: construct, learn, predict, evaluate, save, load."""

import contextlib
import copy
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from gymnasium import Space

from rl_training.algorithms.components import Actor, BuildContext, Parts, StatefulLearner
from rl_training.config import AlgorithmConfig, TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.protocols import ExperienceSource
from rl_training.core.types import Array, PolicyState
from rl_training.models.encoders import EncoderClass

if TYPE_CHECKING:  # declared upward imports: the face calls the experiment layer inside its methods
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.agent import Agent
    from rl_training.runtime.callbacks import Callback

__all__ = ["Algorithm", "Parts"]


class Algorithm:
    """A thin face over parts: no mathematics, no loop, no files of its own.

    `env` is an id, which then is the config's `env_id`, or a function that builds one environment (called with the
    config's `env_kwargs`), for environments that are not registered with Gymnasium; `env_id` is then only a name.
    `encoder` is the class of an encoder of your
    own, which is saved by its name.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[AlgorithmConfig]]
    action_spaces: ClassVar[tuple[type[Space[Any]], ...]]
    """The kinds of actions it takes."""
    bounded_actions: ClassVar[bool] = False
    """Whether continuous actions must have finite bounds."""
    takes_action_masks: ClassVar[bool] = False
    """Whether its policy heeds masks of allowed actions."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        env: "EnvFactory | str | None" = None,
        encoder: EncoderClass | None = None,
    ) -> None:
        if config.algo != self.name:
            raise ConfigError(
                [f"algo is '{config.algo}', but {type(self).__name__} takes algo '{self.name}'"]
            )
        from rl_training.experiment.building import UserObjects

        if isinstance(env, str):
            config, env = config.with_overrides(env_id=env), None
        given = UserObjects(type(self), env, encoder)
        self.config = given.name_encoder(config)
        self._factory, self._encoder = env, encoder
        self._agent: Agent | None = None
        self._run_dir: PathLike[str] | None = None
        """Of the last run: its last checkpoint is read when the agent is asked for."""
        self._unfinished: PathLike[str] | None = None
        self._begins_anew = False
        """Its agent's weights are what the first run begins with, and not where it goes on."""

    @staticmethod
    def build_actor(settings: Any, context: BuildContext) -> Actor[Any]:
        """Return all that acting needs; each algorithm says how."""
        raise TypeError(
            "Algorithm is abstract; use PPO or another entry of rl_training.algorithms.ALGORITHMS"
        )

    @staticmethod
    def build_source(settings: Any, context: BuildContext, actor: Actor[Any]) -> ExperienceSource[Any]:
        """Return where the learner's batches come from; each algorithm says how."""
        raise NotImplementedError("an algorithm needs a build_source of its own")

    @staticmethod
    def build_learner(settings: Any, context: BuildContext, actor: Actor[Any]) -> StatefulLearner:
        """Return the update rule; each algorithm says how."""
        raise NotImplementedError("an algorithm needs a build_learner of its own")

    @classmethod
    def build(cls, settings: Any, context: BuildContext) -> Parts:
        """Return all parts of a run: the actor first, as the others are made for it."""
        actor = cls.build_actor(settings, context)
        source = cls.build_source(settings, context, actor)
        return Parts(actor, source, cls.build_learner(settings, context, actor))

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        callbacks: Sequence["Callback"] = (),
        progress: bool | Literal["auto"] = "auto",
    ) -> Self:
        """Train for `total_timesteps` (default: the config's) in a run folder of its own; return self.

        Called again, or after `load`, it goes on from where the agent is; after an interruption, without a number, in
        the same run up to the budget it had. However it ends, by Ctrl-C or a fault as well, the model then is the agent
        of the run's last checkpoint; while it lasts, `agent` is the one that is being trained. `progress` shows a bar;
        `auto` does in terminals and notebooks.
        """
        from rl_training.experiment import start as runs
        from rl_training.experiment.agent_copies import checkpoint_to_continue
        from rl_training.experiment.console import python_console

        follow = runs.Follow(self._become)
        callbacks = [follow, *callbacks]
        parts: dict[str, Any] = {"algorithm": type(self), "factory": self._factory, "encoder": self._encoder}
        parts["console"] = python_console(progress)
        paused = True  # unless it comes to its end
        try:
            if self._unfinished is not None and total_timesteps is None:
                max_time = self.config.max_time
                result = runs.resume(self._unfinished, max_time=max_time, callbacks=callbacks, **parts)
            else:
                with checkpoint_to_continue(self._agent, self._run_dir) as start_from:
                    config, origin = self._begun(start_from, total_timesteps)
                    result = runs.train(config, callbacks=callbacks, **origin, **parts)
            paused = result.paused
            self._unfinished = result.run_dir if paused else None  # perhaps before its first checkpoint
        finally:
            if follow.run_dir is not None:  # otherwise it did not come to its first checkpoint
                self._run_dir, self._agent = follow.run_dir, None
                self._unfinished = follow.run_dir if paused else None
                with contextlib.suppress(Exception):  # now, as the folder may be gone when it is asked for
                    self._become(self.agent)
        return self

    def _begun(self, start_from: Any, total_timesteps: int | None) -> tuple[TrainConfig, dict[str, Any]]:
        """Return the settings of the next run, and what it begins with, by the names that `train` has for them."""
        from rl_training.experiment.checkpoints.warm_start import beginning

        budget = self.config.total_timesteps if total_timesteps is None else total_timesteps
        if start_from is None:
            return self.config.with_overrides(total_timesteps=budget), {}
        self.agent.environment()  # a loaded agent may know none, or one of somebody else's
        self.agent.permission.refuse_schedules(self.config)
        if self._begins_anew and self._run_dir is None:
            config = self.config.with_overrides(total_timesteps=budget)
            config, learned = beginning(self.agent, start_from, config)
            return config, {"learned": learned}
        config = self.config.with_overrides(total_timesteps=self.agent.timesteps + budget)
        return config, {"start_from": start_from}

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
        """Return (action in the environment's units, state) for one observation or a batch of them.

        A policy with a memory takes the `state` that the last call returned, and forgets it where `episode_start` is
        true; the state of any other is None. `action_masks` says what is allowed, where the observation does not.
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
    ) -> dict[str, Any]:
        """Play `num_episodes` in fresh environments; return `mean_reward`, `std_reward` and more.

        `env` is another environment with the same spaces: an id, or a function that builds one.
        """
        return self.agent.evaluate(num_episodes, deterministic=deterministic, env=env)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the agent as a checkpoint folder: safetensors and JSON, nothing that could run code."""
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
        """Return the agent at `path`: a saved folder, a run, a checkpoint, or `last`/`best` of one.

        It predicts wherever this package is installed; its environment is built when it is asked to play or to learn.
        `env` puts it into another one: an id, or a function that builds one. A module that the agent itself names is
        imported if this user made it, or with `trust_modules`. `overrides` replace settings of either level.
        """
        from rl_training.algorithms import ALGORITHMS
        from rl_training.experiment.loading import load_agent

        algorithm = cls if issubclass(cls, tuple(ALGORITHMS.values())) else None
        if device is not None:
            overrides["device"] = device
        agent = load_agent(
            path,
            algorithm=algorithm,
            env=env,
            encoder=encoder,
            trust_modules=trust_modules,
            overrides=overrides,
        )
        face = algorithm or ALGORITHMS[agent.config.algo]
        model = face(agent.config, env=agent.given.factory, encoder=encoder)
        assert isinstance(model, cls)
        model._become(agent)
        return model

    @classmethod
    def start_from(cls, path: str | PathLike[str], **options: Any) -> Self:
        """Return a model that begins a new run with what the agent at `path` has learned, by its settings.

        It takes what `load` takes, and predicts as that does; but where a loaded model goes on, `learn` begins here
        with a new optimizer, counters and random streams: `PPO.start_from("runs/RUN", learning_rate=1e-4).learn()`.
        """
        model = cls.load(path, **options)
        model._begins_anew = True
        return model

    @property
    def agent(self) -> "Agent":
        """The acting part: of the last checkpoint, or of the run that goes on; at first, with initial weights."""
        if self._agent is None:
            from rl_training.experiment.building import UserObjects
            from rl_training.experiment.loading import load_agent, new_agent

            given = UserObjects(type(self), self._factory, self._encoder)
            if self._run_dir is None:
                self._agent = new_agent(self.config, given)
            else:
                self._agent = load_agent(
                    self._run_dir,
                    algorithm=given.algorithm,
                    env=given.factory,
                    encoder=given.encoder,
                    trust_modules=True,  # this process has just made it
                    probe=False,
                )
        return self._agent

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all that `save` keeps, and nothing that is open; refuse what has no name."""
        from rl_training.experiment.agent_copies import check_picklable
        from rl_training.experiment.building import UserObjects

        check_picklable(UserObjects(type(self), self._factory, self._encoder))
        return self._content()

    def __setstate__(self, content: dict[str, Any]) -> None:
        from rl_training.experiment.agent_copies import existing_folder

        vars(self).update(content)
        self._unfinished = existing_folder(self._unfinished)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        shared = {"_factory": self._factory, "_encoder": self._encoder}  # code, whose name is not needed here
        other.__setstate__(copy.deepcopy(self._content() | dict.fromkeys(shared), memo) | shared)
        return other

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def _content(self) -> dict[str, Any]:
        """Return its attributes with the agent in it, which goes on from its own checkpoint, wherever a run got to."""
        if self._agent is None and self._run_dir is None:
            return dict(vars(self))
        return vars(self) | {"_agent": self.agent, "_run_dir": None}
