"""Room for the hosts of a run on a Ray cluster: the connection, and the resources that are reserved there."""

import contextlib
import importlib
import math
from collections.abc import Mapping
from typing import Any

from rl_training.core.cpu import usable_cores
from rl_training.core.errors import UserError, reason
from rl_training.runtime.ray_cluster import RayCluster, ray_cluster

SECONDS_FOR_ROOM = 30.0
"""How long a run waits at its start for resources that others use, or that the cluster may add."""
OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
"""Resources that Ray has an option of its own for."""


class RaySite:
    """Reserves resources for a number of actors, spread over nodes or packed onto few, until it is closed."""

    def __init__(
        self,
        address: str | None,
        wanted: int | None,
        most: int,
        *,
        resources: Mapping[str, float],
        packed: bool,
        setting: str = "num_samplers",
        besides: int = 0,
    ) -> None:
        """Reserve room for `wanted` actors; None is as many as the CPUs of the cluster allow, at most `most`.

        `setting` is the number of actors as the user knows it, with `besides` that need no room; if there are such,
        None is as many as the CPUs that are free allow, perhaps no actor at all. `resources` are those of each actor;
        it has one CPU unless they say otherwise. A cluster that is started here has as many CPUs as the actors need.
        """
        self.resources = {"CPU": 1, **resources}
        if (gpus := self.resources.get("GPU", 0)) > 1 and gpus != int(gpus):
            raise UserError(f"ray_resources is {self.resources}: above 1, GPU must be a whole number")
        self._address, self._most, self._packed = address, most, packed
        self._setting, self._besides = setting, besides
        self._context = contextlib.ExitStack()
        self._reserved: Any = None
        self.num_hosts = wanted or 0
        self.open()

    def open(self) -> RayCluster:
        """Connect and reserve, unless that was done; return the cluster."""
        if self._reserved is None:
            local = self.num_hosts or min(self._most, usable_cores())
            cpus = max(math.ceil(local * self.resources["CPU"]), 1)
            connection = ray_cluster(self._address, num_cpus=cpus, object_store=None)
            self._cluster = self._context.enter_context(connection)
            try:
                self.num_hosts = self.num_hosts or self._places_for_auto()
                self._reserve()
            except BaseException:
                self.close()
                raise
        return self._cluster

    def _places_for_auto(self) -> int:
        each = self.resources["CPU"]
        cpus = self._free().get("CPU", 0.0) if self._besides else self._cluster.cpus()
        return max(min(self._most, int(cpus / each) if each else self._most), 0 if self._besides else 1)

    def _reserve(self) -> None:
        bundle = {name: amount for name, amount in self.resources.items() if amount}
        self._reserved = False
        if not bundle or not self.num_hosts:
            return
        ray = self._cluster.ray
        strategy = "PACK" if self._packed else "SPREAD"
        try:
            group = ray.util.placement_group([bundle] * self.num_hosts, strategy=strategy)
        except ValueError as error:
            raise UserError(f"ray_resources is {dict(self.resources)}: {reason(error)}") from error
        self._context.callback(_suppressed, ray.util.remove_placement_group, group)
        self._reserved = group
        if not group.wait(timeout_seconds=self._patience()):
            raise UserError(f"the Ray cluster has too few resources: {self.shortage()}")

    def _patience(self) -> float:
        """Return how long to wait for room; a cluster of this run alone never gets more."""
        return SECONDS_FOR_ROOM if self._address is not None else min(SECONDS_FOR_ROOM, 5.0)

    def shortage(self) -> str:
        """Return what the hosts need, and what there is."""
        names = [name for name, amount in self.resources.items() if amount]
        nodes = [node["Resources"] for node in self._cluster.ray.nodes() if node.get("Alive")]
        there = ", ".join(_text({name: node.get(name, 0) for name in names}) for node in nodes) or "none"
        free = self._free()
        others = f" but {self._besides}" if self._besides else ""
        return (
            f"{self._setting} {self.num_hosts + self._besides} needs {_text(self.resources)} for each{others}, its "
            f"nodes have {there}, of which {_text({name: free.get(name, 0) for name in names})} is free in all; use "
            f"fewer {self._setting}, smaller ray_resources, or add nodes"
        )

    def _free(self) -> dict[str, float]:
        found: dict[str, float] = self._cluster.ray.available_resources()
        return found

    def options(self, host: int) -> dict[str, Any]:
        """Return the options of the actor of a host: its resources, and where it is placed."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy: Any = "DEFAULT" if self._packed else "SPREAD"
        if self._reserved:
            strategy = strategies.PlacementGroupSchedulingStrategy(
                self._reserved, placement_group_bundle_index=host
            )
        own = {option: self.resources[name] for name, option in OPTIONS.items() if name in self.resources}
        others = {name: amount for name, amount in self.resources.items() if name not in OPTIONS}
        return {**own, "resources": others, "scheduling_strategy": strategy}

    def close(self) -> None:
        """Give the resources back, and close the connection; `open` reserves again."""
        self._reserved = None
        self._context.close()


def _text(resources: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in resources.items()) + "}"


def _suppressed(function: Any, *arguments: Any) -> None:
    with contextlib.suppress(Exception):
        function(*arguments)
