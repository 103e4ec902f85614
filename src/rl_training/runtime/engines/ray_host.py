"""A host of groups inside of a Ray actor: it answers the calls of a `RayCrew`."""

import contextlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.core.blocks import Block
from rl_training.core.messages import decode
from rl_training.core.one_thread import one_thread
from rl_training.core.types import Array
from rl_training.runtime.engines.sampler_process import encoded, sendable
from rl_training.runtime.groups import Host

Answer = tuple[bytes, Block | None]
"""A message without its block, and the block, whose arrays travel without a copy."""


class RayHost:
    """Builds a host, lets it work, and counts its steps."""

    def __init__(self) -> None:
        self.heart = Heart()
        self._host: Host | None = None
        self._offered: tuple[int, Array] | None = None
        self._open = contextlib.ExitStack()

    def build(self, parcel: bytes, groups: Sequence[int]) -> Answer:
        """Build the host; answer with its node, its process, and what its results depend on."""

        def built() -> tuple[Any, None]:
            self._open.enter_context(one_thread())
            make_host, layouts, describe = decode(parcel)
            self._host = make_host(
                groups,
                lambda group, slot: {name: np.zeros(*each) for name, each in layouts[group].items()},
            )
            for group in self._host.groups.values():
                stepper: Any = group.sampler.stepper
                stepper.step = self.heart.with_beat(stepper.step)
            return (platform.node(), os.getpid(), describe()), None

        with self.heart.resting():
            return _answer(built)

    def begin(self, message: bytes) -> Answer:
        """Let a group begin."""
        with self.heart.resting():
            return _answer(lambda: (self._built.begin(*decode(message)), None))

    def collect(self, message: bytes, version: int, packed: Array) -> Answer:
        """Collect one rollout; its block is copied out of the recorder when Ray stores it."""

        def collected() -> tuple[Any, Block | None]:
            group, ticket = decode(message)
            newest = self._offered
            if ticket.version is None and newest is not None and newest[0] > version:
                self._load(*newest)
            else:
                self._load(version, packed)
            rollout = self._built.collect(group, ticket)
            return replace(rollout, block=None), rollout.block

        return _answer(collected)

    def close(self) -> None:
        """Close the environments."""
        if self._host is not None:
            self._host.close()

    def offer(self, version: int, packed: Array) -> None:
        self._offered = version, packed

    @property
    def _built(self) -> Host:
        assert self._host is not None
        return self._host

    def _load(self, version: int, packed: Array) -> None:
        if version != self._built.version:
            self._built.load(version, packed.copy())  # arrays of the object store are read-only


class Heart:
    """Counts the steps of a host, for others to see that it makes progress."""

    def __init__(self) -> None:
        self._beats, self._rests = 0, False

    def beats(self) -> int:
        """Return the number of beats; while there are no steps, an answer is a beat."""
        self._beats += self._rests
        return self._beats

    def with_beat(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a step that beats before it is taken."""

        def beating_step(action: Any) -> None:
            self._beats += 1
            step(action)

        return beating_step

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Something takes long without a step."""
        self._rests = True
        try:
            yield
        finally:
            self._rests = False


def _answer(work: Callable[[], tuple[Any, Block | None]]) -> Answer:
    """Return the result of some work, or its error, as an answer."""
    try:
        content, block = work()
    except BaseException as error:
        content, block = sendable(error), None
    return encoded(content), block
