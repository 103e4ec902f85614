"""The native Atari backend on scripted games in the place of ale-py's; the real ones are in the integration tests."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.types import Array
from rl_training.envs.factory import make_vector_env
from rl_training.envs.info_keys import CUT
from rl_training.envs.preprocessing.atari_native import NO_LIMIT, NativeAtari
from rl_training.envs.stepper import VectorStepper

OVER = 0
FRAMES_PER_STEP = 4


class ScriptedGames:
    """Behaves as ale-py 0.12 does: `lives` [steps, N] says how many are left after each step; 0 ends a game.

    Frame number k of environment i is all 100 * i + k, counted over all games; in colours green has 20 more than red,
    and blue 40. Every step pays 7.
    """

    lives: Array
    buttons: tuple[str, ...]

    def __init__(self, game: str, num_envs: int, **settings: Any) -> None:
        self.game, self.num_envs, self.settings = game, num_envs, settings
        names = [SimpleNamespace(name=name) for name in self.buttons]
        self.ale = SimpleNamespace(get_action_set=lambda: names)
        self.single_action_space = spaces.Discrete(len(self.buttons))
        self.action_space = spaces.MultiDiscrete([len(self.buttons)] * num_envs)
        self.colours = () if settings["grayscale"] else (3,)
        self.shown, self.frames = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self.steps, self.pressed, self.seeds = 0, list[Any](), list[Any]()

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self.seeds.append(seed)
        rows = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        self._restart(rows)
        return self._screens(), {"lives": self._left(), "episode_frame_number": self.frames.copy()}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        assert actions.dtype in (np.int32, np.int64)
        assert actions.shape == (self.num_envs,)
        self.pressed.append(actions.tolist())
        over = self.lives[self.steps] == OVER
        self.steps += 1
        final = self._screens()  # the observation before, as ale-py gives it
        self.shown += ~over
        self.frames += FRAMES_PER_STEP
        self._restart(over)
        said = {"lives": self._left(), "episode_frame_number": self.frames.copy()}
        if over.any():
            said["final_obs"] = final
        none = np.zeros(self.num_envs, bool)
        return self._screens(), np.full(self.num_envs, 7, np.int32), over, none, said

    def _restart(self, rows: Array) -> None:
        self.shown[rows] += 1
        self.frames[rows] = 1

    def _left(self) -> Array:
        before = self.lives[self.steps - 1] if self.steps else np.full(self.num_envs, 3)
        return np.where(self.frames == 1, 3, before).astype(np.int32)

    def _screens(self) -> Array:
        size = (1, self.settings["img_height"], self.settings["img_width"], *self.colours)
        values = 100 * np.arange(self.num_envs) + self.shown
        shades = 20 * np.arange(3) if self.colours else 0
        return np.stack([(np.full(size, value) + shades).astype(np.uint8) for value in values])


@pytest.fixture(autouse=True)
def _games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedGames, "lives", np.full((9, 2), 3), raising=False)
    monkeypatch.setattr(ScriptedGames, "buttons", ("NOOP", "FIRE", "LEFT"), raising=False)
    monkeypatch.setitem(sys.modules, "ale_py", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ale_py.vector_env", SimpleNamespace(AtariVectorEnv=ScriptedGames))
    for env_id, native in (
        ("ALE/Scripted-v5", "ale_py.vector_env:AtariVectorEnv"),
        ("ScriptedNoFrameskip-v4", None),
    ):
        entry = gymnasium.envs.registration.EnvSpec(
            env_id,
            "ale_py.env:AtariEnv",
            vector_entry_point=native,
            kwargs={
                "game": "scripted",
                "repeat_action_probability": 0.25,
                "full_action_space": False,
                "frameskip": 4,
                "max_num_frames_per_episode": 108_000,
            },
        )
        monkeypatch.setitem(gymnasium.registry, env_id, entry)


def config(**settings: Any) -> TrainConfig:
    usual = {"algo": "ppo", "env_id": "ALE/Scripted-v5", "num_envs": 2, "env_backend": "native"}
    settings["env_kwargs"] = {"repeat_action_probability": 0.0} | settings.get("env_kwargs", {})
    return TrainConfig(**usual | {"preprocessing": "atari", "image_size": 2, "frame_stack": 3} | settings)


def built(**settings: Any) -> tuple[VectorStepper, ScriptedGames]:
    env = make_vector_env(config(**settings))
    assert isinstance(env, NativeAtari)
    stepper = VectorStepper(env, seed=1)
    stepper.reset()
    return stepper, env._games._games


def script(*lives: tuple[int, int]) -> None:
    ScriptedGames.lives = np.array(lives)


def values(stacks: Any) -> list[list[int]]:
    """Return the one value that each frame of the stacks [N, K, 2, 2] has."""
    array = np.asarray(stacks)
    assert array.shape[2:] == (2, 2)
    assert (array == array[:, :, :1, :1]).all()
    found: list[list[int]] = array[:, :, 0, 0].tolist()
    return found


def play(stepper: VectorStepper, *actions: tuple[int, int]) -> None:
    for action in actions:
        stepper.step(np.array(action))


def test_the_games_get_what_the_config_says_and_nothing_that_is_done_here() -> None:
    _, games = built(
        frame_skip=3,
        noop_max=5,
        max_pool=False,
        env_kwargs={"num_threads": 1, "frameskip": 1, "full_action_space": True},
    )
    assert games.game == "scripted"
    assert games.settings | {"autoreset_mode": None} == {
        "img_height": 2, "img_width": 2, "grayscale": True, "stack_num": 1, "frameskip": 3, "maxpool": False,
        "noop_max": 5, "use_fire_reset": True, "reward_clipping": False, "max_num_frames_per_episode": NO_LIMIT,
        "repeat_action_probability": 0.0, "full_action_space": True, "num_threads": 1, "autoreset_mode": None,
    }  # fmt: skip


def test_actions_stick_as_the_id_says_unless_they_are_told_otherwise() -> None:
    env = make_vector_env(replace(config(), env_kwargs={}))
    assert isinstance(env, NativeAtari)
    assert env._games._games.settings["repeat_action_probability"] == 0.25


def test_a_stack_begins_with_its_first_frame_repeated_and_shows_the_oldest_first() -> None:
    stepper, _ = built()
    assert stepper.spec.observation_space.shape == (3, 2, 2)
    assert values(stepper.out.obs) == [[1, 1, 1], [101, 101, 101]]
    play(stepper, (0, 0), (0, 0))
    assert values(stepper.out.obs) == [[1, 2, 3], [101, 102, 103]]
    assert stepper.out.reward.tolist() == [7.0, 7.0]


def test_colours_come_first_and_stay_together() -> None:
    stepper, games = built(grayscale=False, frame_stack=2)
    assert stepper.spec.observation_space.shape == (6, 2, 2)
    games.shown[:] = 4
    play(stepper, (0, 0))
    assert values(stepper.out.obs) == [[1, 21, 41, 5, 25, 45], [101, 121, 141, 105, 125, 145]]


def test_a_lost_life_is_a_cut_that_resets_nothing_and_then_fires() -> None:
    script((3, 3), (2, 3), (2, 3), (2, 3))
    stepper, games = built()
    play(stepper, (0, 0), (0, 0))
    assert stepper.out.cut.tolist() == [True, False]
    assert not stepper.out.ended.any()
    assert values(stepper.out.obs)[0] == [1, 2, 3]
    play(stepper, (2, 2), (2, 2))
    assert games.pressed[2:] == [[1, 2], [2, 2]]
    assert not stepper.out.cut.any()


@pytest.mark.parametrize("settings", [{"fire_reset": False}, {}])
def test_fire_is_not_pressed_where_it_is_not_wanted_or_not_there(settings: dict[str, Any]) -> None:
    if not settings:
        ScriptedGames.buttons = ("NOOP", "LEFT", "RIGHT")
    script((2, 3), (2, 3))
    stepper, games = built(**settings)
    play(stepper, (2, 2), (2, 2))
    assert games.pressed == [[2, 2], [2, 2]]


@pytest.mark.parametrize(("settings", "first"), [({}, 1), ({"fire_reset": False}, 2)])
def test_the_first_step_of_every_game_fires_again_where_actions_stick(
    settings: dict[str, Any], first: int
) -> None:
    script((3, 3), (OVER, 3), (3, 3), (3, 3))
    sticky = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 13}
    stepper, games = built(env_kwargs=sticky, **settings)
    play(stepper, (2, 2), (2, 2), (2, 2), (2, 2))
    assert stepper.out.cut.tolist() == [False, False]
    assert games.pressed == [[first, first], [2, 2], [first, 2], [2, first]]


def test_lost_lives_are_not_told_where_they_shall_not_count_but_fire_is_pressed() -> None:
    script((2, 3), (2, 3))
    stepper, games = built(terminal_on_life_loss=False)
    play(stepper, (2, 2))
    assert not stepper.out.cut.any()
    play(stepper, (2, 2))
    assert games.pressed[1] == [1, 2]


def test_a_game_that_is_over_begins_anew_without_a_cut_and_without_firing() -> None:
    script((1, 3), (OVER, 3), (3, 3))
    stepper, games = built()
    play(stepper, (0, 0), (2, 2))
    assert stepper.out.terminated.tolist() == [True, False]
    assert not stepper.out.cut.any()
    # of the end the games show nothing new
    assert values(stepper.out.final_obs)[0] == [1, 2, 2]
    assert values(stepper.out.obs) == [[3, 3, 3], [101, 102, 103]]
    play(stepper, (2, 2))
    assert games.pressed[2] == [2, 2]
    assert not stepper.out.cut.any()


def test_a_time_limit_shows_the_true_final_observation_and_restarts_that_game_alone() -> None:
    script((3, 3), (3, OVER), (3, 3), (3, 3))
    stepper, games = built(env_kwargs={"max_num_frames_per_episode": 13})
    play(stepper, (0, 0), (0, 0), (0, 0))
    assert stepper.out.truncated.tolist() == [True, False]
    assert not stepper.out.terminated.any()
    assert values(stepper.out.final_obs)[0] == [2, 3, 4]
    assert values(stepper.out.obs) == [[5, 5, 5], [103, 103, 104]]
    assert games.frames.tolist() == [1, 5]
    play(stepper, (0, 0))
    assert not stepper.out.ended.any()


def test_a_time_limit_and_an_end_in_one_step_each_have_their_own_final_observation() -> None:
    script((3, 3), (3, OVER))
    stepper, _ = built(env_kwargs={"max_num_frames_per_episode": 9})
    play(stepper, (0, 0), (0, 0))
    assert (stepper.out.truncated.tolist(), stepper.out.terminated.tolist()) == ([True, False], [False, True])
    assert values(stepper.out.final_obs) == [[1, 2, 3], [101, 102, 102]]
    assert values(stepper.out.obs) == [[4, 4, 4], [103, 103, 103]]


@pytest.mark.parametrize("counts", [True, False])
def test_a_life_lost_in_the_step_of_a_time_limit_is_an_end_if_lives_count(counts: bool) -> None:
    script((3, 3), (2, 3), (3, 3))
    stepper, games = built(env_kwargs={"max_num_frames_per_episode": 9}, terminal_on_life_loss=counts)
    play(stepper, (0, 0), (0, 0))
    assert stepper.out.terminated.tolist() == [counts, False]
    assert stepper.out.truncated.tolist() == [not counts, True]
    assert not stepper.out.cut.any()
    play(stepper, (2, 2))
    assert games.pressed[2] == [2, 2]


def test_info_tells_of_lost_lives_and_of_nothing_else() -> None:
    script((5, 2), (OVER, 1), (3, 3))
    env = make_vector_env(config(env_kwargs={"max_num_frames_per_episode": 9}))
    env.reset()
    action = np.zeros(2, np.int64)
    info = env.step(action)[-1]
    assert info[CUT].tolist() == [False, True]
    # a game with more lives than the next one has ends beside one that loses a life at its time limit
    info = env.step(action)[-1]
    assert info[CUT].tolist() == [False, False]
    assert info["final_info"][CUT].tolist() == [False, True]
    assert env.step(action)[-1] == {}


def test_every_game_has_a_seed_of_its_own_that_ale_can_take() -> None:
    _, games = built()
    (seeds,) = games.seeds
    assert len(set(seeds.tolist())) == 2
    assert all(0 <= seed < 2**31 for seed in seeds)
    env = make_vector_env(config())
    assert isinstance(env, NativeAtari)
    env.reset(seed=2**32 - 1)
    env.reset()
    big, none = env._games._games.seeds
    assert all(0 <= seed < 2**31 for seed in big)
    assert none is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_id": "CartPole-v1"}, "'CartPole-v1' is not an Atari game; use preprocessing image"),
        ({"env_id": "ScriptedNoFrameskip-v4"}, "'sync' or 'async', or env_id 'ALE/Scripted-v5'"),
        ({"env_kwargs": {"mode": 2}}, "'mode', which ale-py's vector environment .* 'sync' or 'async'"),
        ({"env_kwargs": {"frameskip": 4}}, "frameskip 4.*set frame_skip"),
        ({"preprocessing": "image"}, "preprocessing 'image'.*use env_backend 'sync' or 'async'"),
    ],
)
def test_what_the_native_backend_cannot_do_is_said(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_vector_env(config(**settings))


def test_closing_lets_the_games_go() -> None:
    env: VectorEnv[Any, Any, Any] = make_vector_env(config())
    assert isinstance(env, NativeAtari)
    env.close()
    assert env._games is None


def test_a_limit_of_steps_truncates_and_begins_anew() -> None:
    script(*[(3, 3), (3, OVER), (3, 3), (3, 3), (3, 3), (3, 3)])
    stepper, _ = built(max_episode_steps=3)
    ends = []
    for _ in range(6):
        play(stepper, (0, 0))
        ends.append((stepper.out.terminated.tolist(), stepper.out.truncated.tolist()))
    assert ends == [
        ([False, False], [False, False]),
        ([False, True], [False, False]),
        ([False, False], [True, False]),
        ([False, False], [False, False]),
        ([False, False], [False, True]),
        ([False, False], [True, False]),
    ]
