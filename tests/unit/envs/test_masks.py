"""Masks as environments tell them, in whichever way, and what is refused."""

import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import EnvironmentFault, UserError
from rl_training.core.spaces.masks import MASK_KEY, random_allowed, split_mask
from rl_training.core.spaces.stored import stored_space
from rl_training.core.types import EnvSpec
from rl_training.envs.determinism import check_determinism
from rl_training.envs.episodes import SeededEpisodes
from rl_training.envs.factory import make_vector_env
from rl_training.envs.masks import (
    check_user_masks,
    sample_allowed,
    settle_masks,
    with_masks_in_info,
)
from rl_training.envs.specs import env_spec
from rl_training.envs.stepper import VectorStepper
from rl_training.envs.tasks.locks import Locks

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
WAYS = ("info", "method", "entry")
LOCKS = "rl_training.envs.tasks:rl_training/Locks-v0"


class Scripted(gymnasium.Env[Any, Any]):
    """Sees its step; tells the masks of a script, one for each step, in one of the ways; ends with the script."""

    def __init__(
        self, script: list[Any], tell: str = "info", *, truncates: bool = False, action_space: Any = None
    ) -> None:
        self.script, self.tell, self.truncates = script, tell, truncates
        self.action_space = action_space or spaces.Discrete(3)
        seen = spaces.Box(-1, 100, (1,), np.float32)
        size = len(np.hstack(script[0]))
        mask = spaces.Box(0, 1, (size,), np.int8)
        self.observation_space = spaces.Dict({"seen": seen, "action_mask": mask}) if tell == "entry" else seen
        if tell == "method":
            self.action_masks = lambda: self.script[self.count]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count == len(self.script) - 1
        obs, info = self._told()
        return obs, 1.0, over and not self.truncates, over and self.truncates, info

    def _told(self) -> tuple[Any, dict[str, Any]]:
        seen, mask = np.array([self.count], np.float32), self.script[self.count]
        if self.tell == "entry":
            return {"seen": seen, "action_mask": np.asarray(mask, np.int8)}, {}
        return seen, {"action_mask": mask} if self.tell == "info" and mask is not None else {}


def stepper_of(*envs: Any, mode: AutoresetMode = SAME) -> VectorStepper:
    builders = [
        lambda env=env, i=i: SeededEpisodes(with_masks_in_info(env), seed=0, env_index=i)
        for i, env in enumerate(envs)
    ]
    stepper = VectorStepper(SyncVectorEnv(builders, autoreset_mode=mode), masked=True)
    stepper.reset()
    return stepper


def step(stepper: VectorStepper) -> None:
    shape = stepper.spec.action_space.shape or ()
    stepper.step(np.zeros((stepper.spec.num_envs, *shape), np.int64))


@pytest.mark.parametrize("tell", WAYS)
@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("kind", [list, np.array])
def test_masks_arrive_beside_what_is_seen(tell: str, mode: AutoresetMode, kind: Any) -> None:
    script = [kind(mask) for mask in ([1, 0, 0], [0, 1, 0], [0, 0, 1])]
    stepper = stepper_of(Scripted(script, tell), Scripted(script, tell), mode=mode)
    seen = "seen" if tell == "entry" else ""
    assert set(stepper.out.obs) == {seen, MASK_KEY}
    assert stepper.out.obs[MASK_KEY].tolist() == [[True, False, False]] * 2
    step(stepper)
    assert stepper.out.obs[MASK_KEY].tolist() == [[False, True, False]] * 2
    assert stepper.out.obs[seen].tolist() == [[1.0], [1.0]]
    step(stepper)
    assert stepper.out.final_obs[MASK_KEY].tolist() == [[False, False, True]] * 2
    expected = [True, False, False] if mode is SAME else [False, False, True]
    assert stepper.out.obs[MASK_KEY].tolist() == [expected] * 2
    if mode is NEXT:  # the dead row
        step(stepper)
        assert stepper.out.obs[MASK_KEY].tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("truncates", [True, False])
def test_where_an_episode_is_over_nothing_need_be_allowed(mode: AutoresetMode, truncates: bool) -> None:
    stepper = stepper_of(Scripted([[1, 0, 0], [0, 0, 0]], truncates=truncates), mode=mode)
    step(stepper)
    assert stepper.out.ended.all()
    assert stepper.out.final_obs[MASK_KEY].all(), "so that no target is nan"
    assert stepper.out.obs[MASK_KEY].any()


@pytest.mark.parametrize("tell", WAYS)
def test_a_mask_that_allows_nothing_is_an_error_that_names_environment_and_step(tell: str) -> None:
    fine, bad = [[1, 1, 1]] * 5, [[1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]
    stepper = stepper_of(Scripted(fine, tell), Scripted(bad, tell))
    step(stepper)
    with pytest.raises(EnvironmentFault, match=r"environment 1 allows no action at step 2"):
        step(stepper)


def test_each_component_needs_something_that_is_allowed() -> None:
    space = spaces.MultiDiscrete([2, 3])
    stepper = stepper_of(Scripted([[1, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1] * 5], action_space=space))
    with pytest.raises(
        EnvironmentFault, match=r"environment 0 allows no action at step 1.*\[1, 1, 0, 0, 0\]"
    ):
        step(stepper)


ADDRESS = r"environment 1 \(Scripted\) returned .* \(step, step 1 of its episode 0\)"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            None,
            r"no info\['action_mask'\], which is required at every reset and step; .*use_action_masks to off",
        ),
        ([1, 0], r"an action mask of shape \(2,\) instead of \(3,\)"),
        (np.ones((2, 3)), r"an action mask of shape \(2, 3\) instead of \(3,\)"),
        (np.array([0.0, -np.inf, 0.0]), "an action mask with -inf in it; use 1 or true for allowed actions"),
        (np.array([1, -1, 1]), "an action mask with -1 in it"),
        (np.full(3, np.nan), "an action mask with nan in it"),
        (np.array([0, 1, 2]), "an action mask with 2 in it"),
        (["1", "0", "0"], "an action mask that is a list instead of ones and zeros"),
        ({0: True}, "an action mask that is a dict"),
        ([1, None, 0], "an action mask that is a list"),
    ],
    ids=str,
)
def test_what_is_no_mask_is_told_with_an_address(mask: Any, words: str) -> None:
    stepper = stepper_of(Scripted([[1, 1, 1]] * 5), Scripted([[1, 1, 1], mask, [1, 1, 1]]))
    with pytest.raises(EnvironmentFault, match=words) as fault:
        step(stepper)
    assert re.match(ADDRESS, str(fault.value)), str(fault.value)


def test_a_method_may_fail_or_be_silent_where_an_episode_is_over() -> None:
    class Over(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            self.action_masks = self._said
            return super().reset(**kwargs)

        def _said(self) -> Any:
            if self.count == len(self.script) - 1:
                raise RuntimeError("the game is over")
            return self.script[self.count]

    stepper = stepper_of(Over([[0, 1, 0], [1, 0, 0], None], "method"))
    step(stepper)
    step(stepper)
    assert stepper.out.ended.all()
    assert stepper.out.obs[MASK_KEY].tolist() == [[False, True, False]]
    assert stepper.out.final_obs[MASK_KEY].all()


def test_components_may_come_one_by_one() -> None:
    space = spaces.MultiDiscrete([2, 3])
    stepper = stepper_of(Scripted([([1, 0], [1, 1, 0])] * 3, "method", action_space=space))
    assert stepper.out.obs[MASK_KEY].tolist() == [[True, False, True, True, False]]


def test_an_entry_holds_ones_and_zeros_too() -> None:
    stepper = stepper_of(Scripted([[1, 1, 1], [1, 2, 0], [1, 1, 1]], "entry"))
    with pytest.raises(EnvironmentFault, match=r"action masks, one with 2 in it.* at step 1"):
        step(stepper)


@pytest.mark.parametrize("tell", WAYS)
def test_environments_that_begin_anew_alone_keep_the_masks_of_the_others(tell: str) -> None:
    config = TrainConfig(
        algo="ppo", env_id=LOCKS, num_envs=3, use_action_masks="on", env_kwargs={"tell": tell}
    )
    stepper = VectorStepper(make_vector_env(config), masked=True)
    stepper.reset()
    before = stepper.out.obs[MASK_KEY].copy()
    stepper.restart(np.array([False, True, False]))
    after = stepper.out.obs[MASK_KEY]
    assert (after[[0, 2]] == before[[0, 2]]).all()
    assert (after[1] != before[1]).any()
    stepper.close()


class TestWhatIsFound:
    def settled(self, env: Any, wanted: str = "auto", **facts: Any) -> tuple[str, list[str]]:
        told: list[str] = []
        config = TrainConfig(algo="ppo", env_id="Any-v0", use_action_masks=wanted)
        seeded = [lambda: SeededEpisodes(env, seed=0, env_index=0)]
        build = partial(SyncVectorEnv, seeded, autoreset_mode=SAME)
        facts = {"takes_masks": True} | facts
        return settle_masks(config, build, notice=told.append, **facts).use_action_masks, told

    @pytest.mark.parametrize(
        ("tell", "words"),
        [("info", "info['action_mask']"), ("method", "action_masks()"), ("entry", "entry 'action_mask'")],
    )
    @pytest.mark.parametrize("wanted", ["auto", "on"])
    def test_masks_are_found_and_told(self, tell: str, words: str, wanted: str) -> None:
        found, told = self.settled(Scripted([[1, 1, 1]] * 3, tell), wanted)
        assert found == "on"
        assert len(told) == 1
        assert words in told[0]

    def test_nothing_is_said_where_there_is_nothing(self) -> None:
        assert self.settled(gymnasium.make("CartPole-v1")) == ("auto", [])
        assert self.settled(Scripted([[1, 1, 1]] * 3), "off") == ("off", [])
        assert self.settled(Scripted([[1, 1, 1]] * 3), takes_masks=False) == ("auto", [])

    @pytest.mark.parametrize(
        ("env", "facts", "words"),
        [
            ("CartPole-v1", {}, "provides no masks"),
            ("Pendulum-v1", {}, "has continuous actions"),
            ("CartPole-v1", {"takes_masks": False}, "algo 'ppo' does not support action masks"),
        ],
    )
    def test_on_is_refused_where_there_is_nothing(self, env: str, facts: Any, words: str) -> None:
        with pytest.raises(UserError, match=words):
            self.settled(gymnasium.make(env), "on", **facts)

    def test_an_entry_of_that_name_must_be_a_mask_or_be_said_to_be_none(self) -> None:
        with pytest.raises(UserError, match=r"shape \(4,\), but a mask of its actions has 3.*off"):
            self.settled(Scripted([[1] * 4] * 3, "entry"))

    def test_the_entry_is_no_feature_and_must_not_be_all_there_is(self) -> None:
        space = spaces.Dict({"a": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)})
        assert list(env_spec(space, spaces.Discrete(3), 1, masked=True).observation_space) == ["a"]
        assert env_spec(space, spaces.Discrete(3), 1, masked=False).observation_space is space
        alone = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
        with pytest.raises(UserError, match="the only entry of observations is 'action_mask'"):
            env_spec(alone, spaces.Discrete(3), 1, masked=True)

    @pytest.mark.parametrize(
        ("attribute", "words"),
        [
            (property(lambda self: self.script[self.count]), "is not a method"),
            (np.ones(3), "is not a method"),
            (lambda self, player: [1, 1, 1], r"takes arguments \(player\)"),
        ],
    )
    def test_what_is_called_so_and_is_no_such_method_is_refused(self, attribute: Any, words: str) -> None:
        env = type("Odd", (Scripted,), {"action_masks": attribute})([[1, 1, 1]] * 3, "none")
        with pytest.raises(UserError, match=rf"'action_masks' of environment 'Any-v0' {words}; .*off"):
            self.settled(env)
        assert self.settled(env, "off") == ("off", [])

    def test_masks_that_are_told_too_late_or_too_deep_are_remarked(self) -> None:
        class Late(Scripted):
            def reset(self, **kwargs: Any) -> Any:
                return super().reset(**kwargs)[0], {}

        found, told = self.settled(Late([[1, 1, 1]] * 3))
        assert found == "auto"
        assert "in step, but not in reset" in told[0]
        with pytest.raises(UserError, match="in step, but not in reset"):
            self.settled(Late([[1, 1, 1]] * 3), "on")

        class Deep(Scripted):
            def _told(self) -> Any:
                return {"a": super()._told()[0]}, {}

        deep = Deep([[1, 1, 1]] * 3, "entry")
        deep.observation_space = spaces.Dict({"a": deep.observation_space})
        found, told = self.settled(deep)
        assert found == "auto"
        assert "has an entry 'a/action_mask', which is used as a feature" in told[0]

    def test_continuous_actions_leave_the_entry_a_feature(self) -> None:
        env = Scripted([[1, 1, 1]] * 3, "entry", action_space=spaces.Box(-1, 1, (3,)))
        assert self.settled(env) == ("auto", [])


def test_whoever_asks_for_the_history_of_a_strict_environment_asks_by_allowed_actions() -> None:
    """Otherwise the first action would raise, and nothing would have been looked at."""
    config = TrainConfig(algo="ppo", env_id=LOCKS, use_action_masks="on")
    assert check_determinism(config) == check_determinism(TrainConfig(algo="ppo", env_id="CartPole-v1"))
    forgetful = config.with_overrides(env_kwargs={"hint_steps": 3})
    assert not check_determinism(forgetful, lambda **kwargs: Remembering(**kwargs)).problems
    assert check_determinism(forgetful, lambda **kwargs: Remembering(**kwargs)).rebuild


class Remembering(Locks):
    """Shows how often it was reset."""

    resets = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**kwargs)
        self.resets += 1
        return np.clip(obs + np.float32(0.01 * self.resets), -1, 1), info


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete([2, 3], start=[1, 5]),
        spaces.MultiDiscrete([[2, 3], [3, 2]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary((2, 2)),
    ],
    ids=str,
)
def test_drawn_actions_are_allowed_ones(space: Any) -> None:
    rng = np.random.default_rng(0)
    counts = {
        spaces.Discrete: lambda: [space.n],
        spaces.MultiDiscrete: lambda: space.nvec.reshape(-1).tolist(),
    }
    counts = counts.get(type(space), lambda: [2] * int(np.prod(space.shape)))()
    for _ in range(50):
        parts = [
            rng.permutation([True] + [False] * (count - 1)) | (rng.random(count) < 0.3) for count in counts
        ]
        action = sample_allowed(space, np.concatenate(parts))
        assert space.contains(action if not isinstance(space, spaces.Discrete) else np.int64(action))
        zero_based = np.reshape(action - getattr(space, "start", 0), -1)
        assert all(part[choice] for part, choice in zip(parts, zero_based, strict=True))


def test_random_choices_are_spread_evenly_over_the_allowed_ones() -> None:
    allowed = np.tile([False, True, True, False, True, False], (30_000, 1))
    drawn = random_allowed(allowed, np.random.default_rng(0))
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == [1, 2, 4]
    assert counts / 30_000 == pytest.approx(1 / 3, abs=0.01)


class TestMasksForPredict:
    @pytest.mark.parametrize("given", [[1, 0, 1], [[1, 0, 1], [1, 0, 1]], np.array([True, False, True])])
    def test_one_for_all_or_one_each(self, given: Any) -> None:
        assert check_user_masks(spaces.Discrete(3), given, 2).tolist() == [[True, False, True]] * 2

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ([1, 0], r"of shape \(2,\)"),
            ([[1, 0, 1]] * 3, r"of shape \(3, 3\)"),
            ([["a", "b", "c"]], "that is a list"),
            (1, r"of shape \(\)"),
            ([[1, 1]] * 3, r"of shape \(3, 2\)"),
            ([0, -np.inf, 0], "with -inf in it"),
            ([1, None, 0], "that is a list"),
            ([[1, 0], [1, 0, 1]], "that differ in length"),
        ],
    )
    def test_other_things_are_refused(self, given: Any, words: str) -> None:
        with pytest.raises(UserError, match=rf"action_masks (is one|has rows) .*{words}.*; give .*\[2, 3\]"):
            check_user_masks(spaces.Discrete(3), given, 2)

    def test_pairs_may_be_nested(self) -> None:
        assert check_user_masks(spaces.MultiBinary(2), [[1, 0], [1, 1]], 1).tolist() == [
            [True, False, True, True]
        ]

    def test_something_must_be_allowed(self) -> None:
        with pytest.raises(UserError, match="allows no action"):
            check_user_masks(spaces.MultiDiscrete([2, 2]), [1, 1, 0, 0], 1)

    def test_continuous_actions_have_none(self) -> None:
        with pytest.raises(UserError, match="Box actions cannot be masked"):
            check_user_masks(spaces.Box(-1, 1, (2,)), [1, 1], 1)


def test_a_name_that_is_taken_is_refused() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), MASK_KEY: spaces.Discrete(2)})
    with pytest.raises(UserError, match="which is a reserved name"):
        stored_space(EnvSpec(space, spaces.Discrete(3), 1, masked=True))


def test_what_is_stored_has_the_keys_of_the_observation_and_one_more() -> None:
    plain = EnvSpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), 1, masked=True)
    nested = EnvSpec(
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}), spaces.MultiBinary(2), 1, masked=True
    )
    from rl_training.core.spaces.layout import zeros_for

    assert {key: array.shape for key, array in zeros_for(stored_space(plain), 4).items()} == {
        "": (4, 2),
        MASK_KEY: (4, 3),
    }
    assert set(zeros_for(stored_space(nested), 4)) == {"a/b", MASK_KEY}
    seen, mask = split_mask(zeros_for(stored_space(plain), 4))
    assert seen.shape == (4, 2)
    assert mask.dtype == np.bool_
