"""The Atari wrapper on a console whose every frame is known."""

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from records import CountingEnv

from rl_training.config import TrainConfig
from rl_training.core.errors import UserError
from rl_training.envs import make_env, make_vector_env
from rl_training.envs.info_keys import CUT
from rl_training.envs.preprocessing import atari
from rl_training.envs.preprocessing.atari import AtariPreprocessing, offer_games, raw_game_hint, single_frames
from support.fake_ale import FIRE, LEFT, NOOP, FakeGame, fake_opencv


@pytest.fixture(autouse=True)
def without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "opencv", fake_opencv)


def config(**settings: Any) -> TrainConfig:
    quiet = {"env_id": "Fake-v0", "noop_max": 0, "fire_reset": False, "image_size": 2, "num_envs": 1}
    return TrainConfig(algo="ppo", preprocessing="atari", **quiet | settings)


def wrapped(game: FakeGame, **settings: Any) -> AtariPreprocessing:
    return AtariPreprocessing(game, config(**settings))


def shown(obs: Any) -> list[int]:
    """The brightness of each stacked frame, all of whose pixels must agree."""
    assert obs.dtype == np.uint8
    assert (obs == obs[:, :1, :1]).all()
    return obs[:, 0, 0].tolist()


def test_a_stack_begins_with_the_first_frame_repeated_and_then_holds_the_newest_last() -> None:
    env = wrapped(FakeGame(screens={0: 100}), frame_stack=3, frame_skip=2)
    first, _ = env.reset(seed=0)
    assert env.observation_space == spaces.Box(0, 255, (3, 2, 2), np.uint8)
    assert shown(first) == [100, 100, 100]
    assert shown(env.step(NOOP)[0]) == [100, 100, 2]
    assert shown(env.step(NOOP)[0]) == [100, 2, 4]
    assert shown(env.step(NOOP)[0]) == [2, 4, 6]
    assert shown(first) == [100, 100, 100], "what was handed out stays as it was"
    assert shown(env.reset()[0]) == [100, 100, 100], "nothing of the episode before is left"


def test_colours_are_stacked_channel_first() -> None:
    env = wrapped(FakeGame(), frame_stack=2, frame_skip=1, grayscale=False)
    env.reset(seed=0)
    obs = env.step(NOOP)[0]
    assert env.observation_space.shape == obs.shape == (6, 2, 2)
    assert shown(obs) == [0, 1, 2, 1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 60),
        ({"max_pool": False}, 50),
        ({"frame_skip": 1}, 90),
        ({"frame_skip": 2}, 90),
        ({"frame_skip": 3}, 60),
    ],
)
def test_the_brighter_of_the_last_two_frames_is_shown(settings: dict[str, Any], expected: int) -> None:
    env = wrapped(FakeGame(screens={0: 99, 1: 90, 2: 30, 3: 60, 4: 50}), frame_stack=1, **settings)
    env.reset(seed=0)
    assert shown(env.step(NOOP)[0]) == [expected]


@pytest.mark.parametrize("end", ["ends_at", "truncates_at"])
@pytest.mark.parametrize(
    ("frame", "expected"),
    [(5, 40), (6, 35), (7, 35), (8, 20)],
    ids=["first of the skip", "second", "third", "last"],
)
def test_max_pool_takes_the_last_two_real_frames_where_a_game_ends_within_a_skip(
    end: str, frame: int, expected: int
) -> None:
    """Frames 1 to 4 are the step before; 200 and 199 would be stale, and so would 35 at frame 8."""
    screens = {0: 255, 1: 200, 2: 199, 3: 200, 4: 40, 5: 10, 6: 35, 7: 15, 8: 20}
    env = wrapped(FakeGame(screens=screens, **{end: frame}), frame_stack=1)  # type: ignore[arg-type]
    env.reset(seed=0)
    env.step(NOOP)
    obs, _, terminated, truncated, _ = env.step(NOOP)
    assert (terminated, truncated) == (end == "ends_at", end == "truncates_at")
    assert shown(obs) == [expected]
    assert env.unwrapped.ale.frame == frame  # type: ignore[attr-defined]


def test_an_action_lasts_frame_skip_frames_and_is_paid_the_sum_of_their_raw_rewards() -> None:
    game = FakeGame(rewards={1: 7.0, 3: -2.0, 5: 400.0})
    env = wrapped(game, frame_skip=3)
    env.reset(seed=0)
    assert env.step(LEFT)[1] == 5.0
    assert env.step(NOOP)[1] == 400.0
    assert game.played[-1] == [LEFT] * 3 + [NOOP] * 3


class TestLives:
    def test_a_lost_life_is_a_cut_and_neither_an_end_nor_a_reset(self) -> None:
        game = FakeGame(lives_from={0: 3, 6: 2})
        env = wrapped(game)
        env.reset(seed=0)
        resets = len(game.played)
        flags = [env.step(NOOP)[2:] for _ in range(3)]
        assert [(terminated, truncated, info.get(CUT)) for terminated, truncated, info in flags] == [
            (False, False, None),
            (False, False, True),
            (False, False, None),
        ]
        assert len(game.played) == resets

    def test_the_last_life_is_an_end_and_no_cut(self) -> None:
        env = wrapped(FakeGame(lives_from={0: 1, 3: 0}, ends_at=3))
        env.reset(seed=0)
        _, _, terminated, _, info = env.step(NOOP)
        assert terminated
        assert CUT not in info

    def test_a_life_gained_is_no_cut(self) -> None:
        env = wrapped(FakeGame(lives_from={0: 1, 3: 2, 7: 1}))
        env.reset(seed=0)
        assert CUT not in env.step(NOOP)[4]
        assert env.step(NOOP)[4][CUT] is True

    def test_lives_may_not_matter(self) -> None:
        env = wrapped(FakeGame(lives_from={0: 3, 2: 2}), terminal_on_life_loss=False)
        env.reset(seed=0)
        assert CUT not in env.step(NOOP)[4]

    def test_a_new_game_has_its_own_lives(self) -> None:
        env = wrapped(FakeGame(lives_from={0: 3, 2: 1}, truncates_at=8))
        env.reset(seed=0)
        env.step(NOOP)
        env.reset()
        assert env.step(NOOP)[4][CUT] is True


class TestFire:
    def test_the_step_after_a_lost_life_takes_fire_whatever_was_chosen(self) -> None:
        game = FakeGame(lives_from={0: 3, 2: 2})
        env = wrapped(game, fire_reset=True, frame_skip=2, terminal_on_life_loss=False)
        env.reset(seed=0)
        for _ in range(3):
            env.step(LEFT)
        assert game.played[-1] == [FIRE, LEFT, LEFT, FIRE, FIRE, LEFT, LEFT]

    def test_a_new_game_owes_no_fire(self) -> None:
        game = FakeGame(lives_from={0: 3, 2: 2})
        env = wrapped(game, fire_reset=True, frame_skip=2)
        env.reset(seed=0)
        env.step(LEFT)
        env.reset()
        env.step(LEFT)
        assert game.played[-1] == [FIRE, LEFT, LEFT]

    @pytest.mark.parametrize("game", [FakeGame(lives_from={0: 3, 2: 2}, meanings=("NOOP", "UP", "LEFT"))])
    def test_a_game_without_fire_is_played_without(self, game: FakeGame) -> None:
        env = wrapped(game, fire_reset=True, frame_skip=2)
        env.reset(seed=0)
        env.step(LEFT)
        env.step(LEFT)
        assert game.played[-1] == [LEFT] * 4

    def test_a_game_that_ends_while_it_begins_is_begun_again(self) -> None:
        """Firing may end a game: what is shown then belongs to a new one."""
        game = FakeGame(screens={0: 70}, ends_at=1)
        env = wrapped(game, fire_reset=True, frame_stack=1)
        obs, _ = env.reset(seed=0)
        assert shown(obs) == [70]
        assert game.played[-2:] == [[FIRE], []]


class TestBeginnings:
    def test_no_ops_come_before_fire_one_frame_each_and_the_last_frame_alone_is_shown(self) -> None:
        game = FakeGame()
        env = wrapped(game, noop_max=5, fire_reset=True, frame_stack=1)
        obs, _ = env.reset(seed=3)
        *noops, fire = game.played[-1]
        assert fire == FIRE
        assert 1 <= len(noops) <= 5
        assert set(noops) == {NOOP}
        assert shown(obs) == [len(noops) + 1]

    def test_their_number_is_drawn_from_one_to_the_limit_by_the_reset_seed(self) -> None:
        game = FakeGame()
        env = wrapped(game, noop_max=3)

        def number(seed: int) -> int:
            env.reset(seed=seed)
            return len(game.played[-1])

        drawn = [number(seed) for seed in range(40)]
        assert set(drawn) == {1, 2, 3}
        assert drawn == [number(seed) for seed in range(40)]

    def test_a_used_game_begins_like_a_fresh_one(self) -> None:
        fresh, used = (wrapped(FakeGame(leaks=True), frame_stack=1) for _ in range(2))
        for _ in range(3):
            used.reset(seed=0)
            used.step(NOOP)
        assert shown(used.reset(seed=9)[0]) == shown(fresh.reset(seed=9)[0])
        assert shown(used.step(NOOP)[0]) == shown(fresh.step(NOOP)[0])

    def test_no_reset_seeds_the_console_which_would_load_the_game_anew(self) -> None:
        game = FakeGame()
        env = wrapped(game)
        env.reset(seed=1)
        env.reset(seed=2)
        assert set(game.reset_seeds) == {None}
        assert game.ale.loads == 1

    def test_wrappers_below_draw_from_the_reset_seed_all_the_same(self) -> None:
        class Noisy(gymnasium.Wrapper[Any, Any, Any, Any]):
            def reset(self, **kwargs: Any) -> Any:
                self.drawn = float(self.np_random.random())
                return super().reset(**kwargs)

        noisy = Noisy(FakeGame())
        env = AtariPreprocessing(noisy, config(noop_max=4))
        env.reset(seed=5)
        once = noisy.drawn
        env.reset(seed=6)
        assert noisy.drawn != once
        env.reset(seed=5)
        assert noisy.drawn == once

    def test_a_time_limit_below_counts_frames_and_starts_anew(self) -> None:
        env = AtariPreprocessing(TimeLimit(FakeGame(), 6), config())
        for _ in range(2):
            env.reset(seed=0)
            assert env.step(NOOP)[3] is False
            assert env.step(NOOP)[3] is True

    def test_the_setting_counts_what_an_agent_does(self) -> None:
        env = make_env(config(max_episode_steps=3), 0, factory=FakeGame)()
        env.reset()
        assert [env.step(NOOP)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


class TestStickiness:
    def test_it_is_taken_from_the_console_and_made_by_the_wrapper(self) -> None:
        game = FakeGame(stickiness=0.25)
        wrapped(game).reset(seed=0)
        assert game.ale.settings["repeat_action_probability"] == 0.0
        assert game.ale.loaded_with == 0.0
        assert game.ale.loads == 2

    def test_the_action_of_the_frame_before_is_repeated_that_often(self) -> None:
        buttons = tuple(f"BUTTON {number}" for number in range(2000))
        game = FakeGame(stickiness=0.25, meanings=("NOOP", *buttons), screens=dict.fromkeys(range(2001), 0))
        env = wrapped(game, frame_skip=1)
        env.reset(seed=0)
        for action in range(1, 2001):
            env.step(action)
        played = game.played[-1]
        repeated = [action == before for action, before in zip(played, [NOOP, *played[:-1]], strict=True)]
        assert all(again or played[number] == number + 1 for number, again in enumerate(repeated))
        assert 0.21 < np.mean(repeated) < 0.29

    def test_an_episode_begins_with_a_no_op_to_be_repeated(self) -> None:
        game = FakeGame(stickiness=1.0)
        env = wrapped(game, frame_skip=2)
        for _ in range(2):
            env.reset(seed=0)
            env.step(LEFT)
            assert game.played[-1] == [NOOP, NOOP]

    def test_the_last_action_of_a_game_does_not_stick_to_the_next(self) -> None:
        used = FakeGame(stickiness=0.5)
        env, first_actions = wrapped(used, frame_skip=4), set()
        for seed in range(20):
            fresh = FakeGame(stickiness=0.5)
            for each in (env, wrapped(fresh, frame_skip=4)):
                each.reset(seed=seed)
                each.step(LEFT)
            assert used.played[-1] == fresh.played[-1]
            first_actions.add(used.played[-1][0])
        assert first_actions == {NOOP, LEFT}, "some games begin with a repeated action, and some do not"

    def test_fire_never_sticks_as_the_game_would_wait_for_ever(self) -> None:
        game = FakeGame(stickiness=0.5, lives_from={0: 3, 2: 2})
        env = wrapped(game, fire_reset=True, noop_max=3, frame_skip=4)
        for seed in range(20):
            env.reset(seed=seed)
            assert game.played[-1][-1] == FIRE
        game = FakeGame(stickiness=0.5, lives_from={0: 3, 4: 2})
        env = wrapped(game, fire_reset=True, frame_skip=4)
        for seed in range(20):
            env.reset(seed=seed)
            env.step(LEFT)
            env.step(LEFT)
            assert game.played[-1][5:] == [FIRE] * 4

    def test_it_follows_the_reset_seed(self) -> None:
        def played(seed: int) -> list[int]:
            game = FakeGame(stickiness=0.5)
            env = wrapped(game, noop_max=3)
            env.reset(seed=seed)
            for number in range(10):
                env.step(number % 3)
            return game.played[-1]

        assert played(1) == played(1)
        assert played(1) != played(2)


class TestRefusals:
    def test_what_is_no_atari_game(self) -> None:
        with pytest.raises(
            UserError, match=r"'Fake-v0' \(CountingEnv\) is not an Atari game; use preprocessing image"
        ):
            AtariPreprocessing(CountingEnv(), config())

    @pytest.mark.parametrize("frameskip", [4, (2, 5)])
    def test_a_game_that_skips_frames_itself(self, frameskip: Any) -> None:
        with pytest.raises(UserError, match=r"skips frames .* build it with frameskip=1 and set frame_skip"):
            wrapped(FakeGame(frameskip=frameskip))

    def test_a_game_in_a_wrapper_that_skips_frames(self) -> None:
        class Skips(gymnasium.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:
                for _ in range(3):
                    super().step(action)
                return super().step(action)

        game = FakeGame()
        with pytest.raises(
            UserError, match=r"a wrapper that plays 4 frames per step.* leave that wrapper out"
        ):
            AtariPreprocessing(TimeLimit(Skips(game), 100), config())
        assert (game.ale.frame, game.ale.memory) == (0, 0), "the game is as fresh as before"

    def test_continuous_actions(self) -> None:
        game = FakeGame()
        game.action_space = spaces.Box(0, 1, (3,))  # type: ignore[assignment]
        with pytest.raises(UserError, match="continuous actions"):
            wrapped(game)

    def test_opencv_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "cv2", None)
        with pytest.raises(UserError, match=r"needs OpenCV; pip install 'rl-training\[atari\]'"):
            wrapped(FakeGame())

    @pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
    def test_ale_is_missing(self, env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ale_py", None)
        monkeypatch.setattr(gymnasium, "registry", {})
        with pytest.raises(
            UserError, match=rf"'{env_id}' is an Atari game.* pip install 'rl-training\[atari\]'"
        ):
            make_env(config(env_id=env_id), 0)()

    def test_an_unknown_id_that_is_no_game_is_left_to_gymnasium(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ale_py", None)
        offer_games("CartPoll-v1")

    def test_a_known_id_imports_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(atari.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
        offer_games("CartPole-v1")


class TestBuilding:
    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A game and another environment that are in the registry."""
        for name, entry in (("Game-v0", "ale_py.env:AtariEnv"), ("Other-v0", "elsewhere:Env")):
            spec = gymnasium.envs.registration.EnvSpec(id=name, entry_point=entry)
            monkeypatch.setitem(gymnasium.registry, name, spec)

    def test_a_registered_game_steps_single_frames_whatever_its_own_skip_is(self) -> None:
        built = single_frames("Game-v0", {"difficulty": 1})
        assert built == {"difficulty": 1, "frameskip": 1, "obs_type": "ram", "disable_env_checker": True}
        assert single_frames("Game-v0", {"obs_type": "rgb"})["obs_type"] == "rgb"

    def test_another_environment_gets_its_arguments_as_they_are(self) -> None:
        assert single_frames("Other-v0", {"frameskip": 4}) == {"frameskip": 4}

    def test_a_frame_skip_among_the_arguments_is_refused(self) -> None:
        assert single_frames("Game-v0", {"frameskip": 1})["frameskip"] == 1
        with pytest.raises(
            UserError, match=r"env_kwargs has frameskip 4, .* leave it out and set frame_skip"
        ):
            single_frames("Game-v0", {"frameskip": 4})

    def test_a_factory_s_game_is_wrapped_too_and_a_new_one_is_noticed(self) -> None:
        games: list[FakeGame] = []

        def factory(**kwargs: Any) -> FakeGame:
            games.append(FakeGame(stickiness=0.25, **kwargs))
            return games[-1]

        env = make_env(config(rebuild_envs="on", frame_stack=1), 0, factory=factory)()
        for _ in range(3):
            env.reset()
            env.step(NOOP)
        assert [game.ale.loaded_with for game in games] == [0.0, 0.0, 0.0]
        assert [len(game.played[-1]) for game in games] == [4, 4, 4]

    def test_a_video_shows_the_game_at_the_speed_of_the_console(self) -> None:
        env = make_env(config(frame_skip=3), 0, factory=FakeGame, render_mode="rgb_array")()
        env.reset()
        assert env.metadata["render_fps"] == 20.0
        assert env.unwrapped.metadata["render_fps"] == 30, "the class is left alone"
        assert env.render().shape == (6, 4, 3)  # type: ignore[union-attr]

    def test_what_the_console_counts_is_left_out_and_what_a_wrapper_says_is_kept(self) -> None:
        env = wrapped(FakeGame())
        assert env.reset(seed=0)[1] == {}
        assert env.step(NOOP)[4] == {"own": 4}


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_raw_game_without_preprocessing_gets_a_hint(backend: str) -> None:
    raw = TrainConfig(algo="ppo", env_id="Fake-v0", num_envs=2)
    games = make_vector_env(raw, factory=FakeGame, backend=backend)
    others = make_vector_env(raw, factory=CountingEnv, backend=backend)
    prepared = make_vector_env(raw, factory=lambda: wrapped(FakeGame()), backend=backend)
    try:
        text = raw_game_hint(raw, games)
        assert text is not None
        assert "'Fake-v0' is an Atari game" in text
        assert "--preprocessing atari" in text
        assert raw_game_hint(raw.with_overrides(preprocessing="image"), games) is None
        assert raw_game_hint(raw, others) is None
        assert raw_game_hint(raw, prepared) is None, "somebody has preprocessed it already"
    finally:
        prepared.close()
        games.close()
        others.close()
