"""Hosts of environment groups, and the engine of a run: built from its config, here or in another process."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import load_env_creator

from rl_training.config import TrainConfig
from rl_training.config.env_wrappers import wrapper_calls
from rl_training.config.object_paths import imported_object
from rl_training.core.cpu import usable_cores
from rl_training.core.messages import encode_code
from rl_training.core.one_thread import one_thread
from rl_training.core.packing import PackedModule, share_storage
from rl_training.core.protocols import Acting, Engine, ExperienceSource, Sampler
from rl_training.core.seeding import GROUPS, derived_seed
from rl_training.core.types import Array, EnvSpec
from rl_training.data.block_recorder import BlockRecorder, block_columns, block_of
from rl_training.envs.stepper import saved_statistics
from rl_training.envs.stepper_factory import training_stepper
from rl_training.experiment.building import UserObjects, build_actor
from rl_training.experiment.logs.metadata import surroundings
from rl_training.experiment.resources import keep_freed_memory
from rl_training.runtime.crews import Crew
from rl_training.runtime.engines.fork_server import ForkServer
from rl_training.runtime.engines.local import GroupsEngine, Layout, LocalCrew, LocalEngine
from rl_training.runtime.engines.process import ProcessCrew, encoded_setup
from rl_training.runtime.engines.ray import RayCrew
from rl_training.runtime.engines.ray_site import RaySite
from rl_training.runtime.engines.sampler_process import serve
from rl_training.runtime.groups import Group, Host, Rollout
from rl_training.runtime.sampler import LocalSampler
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE, ScheduledSampler


@dataclass(frozen=True)
class HostBuilder:
    """Builds a host with some of a run's groups; it is sent to other processes."""

    config: TrainConfig
    given: UserObjects
    dtype: torch.dtype
    registered: Sequence[Any] = ()
    """Entries of Gymnasium's registry: a script may have made them, which no other process runs."""
    of_script: Mapping[str, Any] = field(default_factory=dict)
    """Classes that the config names as `__main__:Name`."""

    def __call__(self, groups: Sequence[int], columns: Callable[[int, int], Mapping[str, Array]]) -> Host:
        torch.set_default_dtype(self.dtype)
        torch.set_num_threads(1)
        for entry in self.registered:
            gymnasium.registry.setdefault(entry.id, entry)
        for name, found in self.of_script.items():
            vars(sys.modules["__main__"]).setdefault(name, found)
        built = {group: self._group(group, columns) for group in groups}
        policies = [policy for _, policy in built.values()]
        for policy in policies[1:]:
            share_storage(policy, policies[0])
        return Host(PackedModule(policies[0]), {group: own for group, (own, _) in built.items()})

    def _group(self, group: int, columns: Callable[[int, int], Mapping[str, Array]]) -> tuple[Group, Any]:
        config, sizes = self.config, self.config.group_sizes
        first = [0, *accumulate(sizes)][group]
        stepper = training_stepper(config, self.given.factory, num_envs=sizes[group], first_index=first)
        own = config.with_overrides(seed=group_seed(config, group), device="cpu")  # where hosts act
        actor = build_actor(own, stepper.spec, replace(self.given, losses={}))
        actor.policy.requires_grad_(False).to("cpu")
        recorders = [BlockRecorder(columns(group, slot)) for slot in range(num_slots(config))]
        sampler = LocalSampler(stepper, actor.explorer, recorders[0])
        shares_generators = config.env_groups == 1 and config.lag == 0
        seed = None if shares_generators else derived_seed(config.seed, GROUPS, group, 1)
        return Group(group, sampler, recorders, global_seed=seed), actor.policy


def group_seed(config: TrainConfig, group: int) -> int:
    """Return the seed of a group's explorer; a single group has that of the run."""
    return config.seed if config.env_groups == 1 else derived_seed(config.seed, GROUPS, group)


def num_slots(config: TrainConfig) -> int:
    """Return the number of rollouts of a group that exist at the same time.

    With lag `free`, that is the one that is recorded now, besides all that are under way.
    """
    return (TICKETS_AT_ONCE if config.lag == "free" else int(config.lag)) + 1


def num_hosts(config: TrainConfig) -> int:
    """Return the number of processes that collect, besides the run's own; on Ray, the cluster may have fewer."""
    assert config.engine != "auto", "choose_engine replaces it"
    if config.engine == "local":
        return 0
    if config.num_samplers == "auto":
        return config.env_groups if config.engine == "ray" else min(config.env_groups, usable_cores())
    return config.num_samplers


@contextlib.contextmanager
def open_engine(config: TrainConfig, given: UserObjects) -> Iterator[Engine]:
    """Open the training environments. One thread until the learner is built: `run_threads` sets the run's number."""
    keep_freed_memory()
    with one_thread(), contextlib.closing(make_engine(config, given)) as engine:
        yield engine


def make_engine(config: TrainConfig, given: UserObjects) -> Engine:
    """Return the engine of a run; without groups, lag and samplers all environments are in this process."""
    hosts = num_hosts(config)
    if hosts == 0 and config.env_groups == 1 and config.lag == 0:
        return LocalEngine(partial(training_stepper, config, given.factory))
    described = _described(config, given)
    return GroupsEngine(*described, CrewBuilder(config, given, hosts))


class CrewBuilder:
    """Hires the crews of a run, and makes the samplers that they work for."""

    def __init__(self, config: TrainConfig, given: UserObjects, num_hosts: int) -> None:
        self.config, self.given, self.num_hosts = config, given, num_hosts
        self._place: ForkServer | RaySite | None = None
        if num_hosts:
            encoded_setup(self._builder())  # what cannot be sent is refused before there is a run folder
            self._place = new_ray_site(config) if config.engine == "ray" else new_fork_server()

    def _builder(self) -> HostBuilder:
        config = self.config
        registered, of_script = _registered(config.env_id), _classes_of_script(config)
        return HostBuilder(config, self.given, torch.get_default_dtype(), registered, of_script)

    def hire(self, actor: Acting, source: ExperienceSource[Any]) -> Crew:
        """Start the hosts."""
        config, sizes, builder = self.config, self.config.group_sizes, self._builder()

        def layout(group: int) -> Layout:
            return block_columns(
                actor.policy.spec, actor.explorer.columns, source.steps_per_collect, sizes[group]
            )

        if self._place is None:
            return LocalCrew(builder, len(sizes), layout)
        if isinstance(self._place, RaySite):
            return RayCrew(
                self._place,
                builder,
                len(sizes),
                layout,
                seconds_to_answer=config.env_timeout,
                describe=partial(surroundings, config),
            )
        return ProcessCrew(
            builder,
            len(sizes),
            self.num_hosts,
            layout,
            packed_bytes=PackedModule(actor.policy).nbytes,
            slots=num_slots(config),
            seconds_to_answer=config.env_timeout,
            block_of=_block,
            server=self._place,
        )

    def sampler(
        self, crew: Crew, actor: Acting, source: ExperienceSource[Any], *, resumable: bool
    ) -> Sampler:
        """Return the sampler that schedules the work of a crew."""
        config = self.config
        return ScheduledSampler(
            crew,
            config.group_sizes,
            source,
            PackedModule(actor.policy),
            lag=config.lag,
            max_policy_lag=config.max_policy_lag,
            max_restarts=config.max_sampler_restarts,
            resumable=resumable,
            read_statistics=saved_statistics,
        )

    def close(self) -> None:
        if self._place is not None:
            self._place.close()


def _registered(env_id: str) -> list[Any]:
    """Return the entry of an environment in Gymnasium's registry, and those of the script, which it may build on."""
    own = gymnasium.registry.get(env_id)
    found = [] if own is None else [_with_class(own)]
    for entry in gymnasium.registry.values():
        if entry is not own and _is_of_script(entry.entry_point):
            with contextlib.suppress(Exception):  # it may not be needed
                sent = _with_class(entry)
                encode_code(sent)
                found.append(sent)
    return found


def _with_class(entry: Any) -> Any:
    """Return an entry with its class, if its name is one of the script's."""
    if isinstance(entry.entry_point, str) and _is_of_script(entry.entry_point):
        creator: Any = load_env_creator(entry.entry_point)
        return replace(entry, entry_point=creator)
    return entry


def _is_of_script(entry_point: Any) -> bool:
    if isinstance(entry_point, str):
        return entry_point.startswith("__main__:")
    return getattr(entry_point, "__module__", None) == "__main__"


def _classes_of_script(config: TrainConfig) -> dict[str, Any]:
    """Return the wrappers and the encoder that the script itself defines, by the name that the config looks up."""
    paths = [*(path for path, _ in wrapper_calls(config.env_wrappers)), config.algorithm.encoder]
    names = {
        path.removeprefix("__main__:").partition(".")[0] for path in paths if path.startswith("__main__:")
    }
    found = {name: imported_object(f"__main__:{name}") for name in sorted(names)}
    return {name: each for name, each in found.items() if each is not None}


def new_fork_server() -> ForkServer:
    """Return a fork server for the processes of a crew."""
    return ForkServer(__name__, "serve")


def new_ray_site(config: TrainConfig) -> RaySite:
    """Return room for the hosts of a run on a Ray cluster."""
    return RaySite(
        config.ray_address,
        None if config.num_samplers == "auto" else config.num_samplers,
        config.env_groups,
        resources=config.ray_resources,
        packed=config.ray_placement == "pack",
    )


def _described(config: TrainConfig, given: UserObjects) -> tuple[EnvSpec, list[str], bool]:
    """Return the spaces of the environments, hints for the user, and whether episodes can be restored."""
    stepper = training_stepper(config, given.factory, num_envs=1)
    try:
        return replace(stepper.spec, num_envs=config.num_envs), list(stepper.notices), stepper.resumable
    finally:
        stepper.close()


def _block(columns: Mapping[str, Array], rollout: Rollout) -> Any:
    return block_of(columns, rollout.num_steps, int(columns["ended"][: rollout.num_steps].sum()))


__all__ = ["HostBuilder", "make_engine", "open_engine", "serve"]
