"""The config is strict: it refuses what it does not know, says everything at once, and reads back what it wrote."""

from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from loading import ROOT
from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.ppo import PPOConfig
from rl_training.cli.train import RUN_GROUPS
from rl_training.config import TrainConfig, config_from_dict, load_config
from rl_training.config.fields import field_docs
from rl_training.config.preprocessing import IMAGE_SETTINGS, Frames
from rl_training.core.errors import ConfigError, UserError

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3}
CONFIGS = ROOT / "configs"


def problems_of(data: dict) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from_dict(data)
    return caught.value.problems


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


class TestWhatSuffices:
    def test_three_keys_of_yaml(self, tmp_path):
        config = load_config(write(tmp_path, "algo: ppo\nenv_id: CartPole-v1\nseed: 3\n"))
        assert (config.algo, config.env_id, config.seed) == ("ppo", "CartPole-v1", 3)
        assert config.algorithm == PPOConfig()

    def test_four_arguments_in_python(self, tmp_path):
        config = TrainConfig(algo="ppo", env_id="CartPole-v1", seed=3, output_dir=str(tmp_path))
        assert config.algorithm == PPOConfig()
        assert config.total_timesteps > 0

    def test_a_path_serves_as_output_dir(self, tmp_path):
        config = TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=tmp_path)
        assert config.output_dir == str(tmp_path)

    def test_defaults_suit_two_environments_of_64_steps(self):
        config = TrainConfig(**BASE).with_overrides(num_envs=2, num_steps=64)
        assert config.algorithm.batch_size == 64

    @pytest.mark.parametrize("missing", ["algo", "env_id"])
    def test_a_missing_key_is_named(self, missing):
        data = {key: value for key, value in BASE.items() if key != missing}
        assert problems_of(data) == [f"key '{missing}' is missing"]


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("key", "nearest"),
        [("num_env", "num_envs"), ("total_timestep", "total_timesteps"), ("sede", "seed")],
    )
    def test_run_level_with_the_nearest_name(self, key, nearest):
        (problem,) = problems_of(BASE | {key: 4})
        assert f"'{key}'" in problem
        assert f"did you mean '{nearest}'" in problem

    @pytest.mark.parametrize(
        ("key", "nearest"), [("learning_rte", "learning_rate"), ("batchsize", "batch_size")]
    )
    def test_algorithm_level_with_the_nearest_name(self, key, nearest):
        (problem,) = problems_of(BASE | {"algorithm": {key: 4}})
        assert f"'algorithm.{key}'" in problem
        assert f"did you mean '{nearest}'" in problem

    def test_nothing_is_suggested_for_nonsense(self):
        (problem,) = problems_of(BASE | {"qqqqqqqq": 1})
        assert "'qqqqqqqq'" in problem
        assert "did you mean" not in problem

    def test_an_algorithm_setting_at_the_top_is_sent_down(self):
        (problem,) = problems_of(BASE | {"learning_rate": 1e-3})
        assert "'learning_rate'" in problem
        assert "under 'algorithm:'" in problem

    def test_a_run_setting_under_algorithm_is_sent_up(self):
        (problem,) = problems_of(BASE | {"algorithm": {"num_envs": 4}})
        assert "'algorithm.num_envs'" in problem
        assert "top level" in problem
        assert "num_steps" not in problem  # the nearest name of the wrong level would mislead

    def test_a_key_that_is_not_text(self):
        (problem,) = problems_of(BASE | {7: "x"})
        assert "'7'" in problem

    def test_an_unknown_algorithm_with_the_nearest_name(self):
        (problem,) = problems_of(BASE | {"algo": "pppo"})
        assert "'pppo'" in problem
        assert "did you mean 'ppo'" in problem

    def test_an_override_that_nobody_knows(self):
        with pytest.raises(ConfigError, match="'learning_rte'; did you mean 'learning_rate'"):
            TrainConfig(**BASE).with_overrides(learning_rte=1.0)


class TestWrongTypes:
    @pytest.mark.parametrize(
        ("key", "value", "remedy"),
        [
            ("seed", "three", "whole number"),
            ("seed", True, "whole number"),
            ("num_envs", 4.5, "whole number"),
            ("total_timesteps", "5e-3", "whole number"),
            ("total_timesteps", 5.5, "whole number"),
            ("total_timesteps", 2**70, "at most"),
            ("total_timesteps", float("inf"), "whole number"),
            ("normalize_obs", 1, "true or false"),
            ("normalize_obs", "yes", "true or false"),
            ("env_id", 5, "text"),
            ("env_kwargs", [1], "map"),
            ("env_kwargs", {1: 2}, "map"),
            ("env_backend", "asynch", "did you mean 'async'"),
            ("env_backend", False, "sync, async, native"),
            ("stop_at_reward", "high", "number"),
            ("max_time", float("nan"), "finite"),
            ("stop_after_stale_evals", 2.5, "whole number"),
        ],
    )
    def test_run_level(self, key, value, remedy):
        (problem,) = problems_of(BASE | {key: value})
        assert problem.startswith(f"{key} is {value!r}; ")
        assert remedy in problem

    @pytest.mark.parametrize(
        ("key", "value", "remedy"),
        [
            ("gamma", "high", "number"),
            ("gamma", True, "number"),
            ("learning_rate", float("inf"), "finite"),
            ("num_steps", 2.5, "whole number"),
            ("update_epochs", True, "whole number"),
            ("clip_vloss", 0, "true or false"),
            ("hidden_sizes", 64, "list"),
            ("hidden_sizes", [64, "x"], "whole number"),
            ("activation", "tahn", "did you mean 'tanh'"),
            ("learning_rate_schedule", None, "constant, linear, cosine"),
        ],
    )
    def test_algorithm_level(self, key, value, remedy):
        (problem,) = problems_of(BASE | {"algorithm": {key: value}})
        assert problem.startswith(f"algorithm.{key} is {value!r}; ")
        assert remedy in problem

    def test_settings_of_the_algorithm_that_are_no_map(self):
        (problem,) = problems_of(BASE | {"algorithm": 5})
        assert problem == "algorithm is 5; use a mapping of settings"

    def test_settings_of_another_class(self):
        with pytest.raises(ConfigError, match=r"algorithm is a dict, but algo 'ppo' takes a PPOConfig"):
            TrainConfig(**BASE, algorithm={"gamma": 0.9})


class TestNumbersOfYaml:
    def test_3e_4_is_a_number_though_yaml_reads_text(self, tmp_path):
        text = "algo: ppo\nenv_id: CartPole-v1\nseed: 3\nalgorithm:\n  learning_rate: 3e-4\n"
        value = load_config(write(tmp_path, text)).algorithm.learning_rate
        assert value == 3e-4
        assert isinstance(value, float)

    def test_a_whole_number_becomes_a_float_where_one_is_wanted(self):
        config = config_from_dict(BASE | {"algorithm": {"gamma": 1}})
        assert isinstance(config.algorithm.gamma, float)

    @pytest.mark.parametrize("written", ["5e3", "5.0e+3", "5000.0", "'5000'", "5_000"])
    def test_a_whole_number_may_be_written_as_people_do(self, tmp_path, written):
        text = f"algo: ppo\nenv_id: CartPole-v1\nseed: 3\ntotal_timesteps: {written}\n"
        steps = load_config(write(tmp_path, text)).total_timesteps
        assert (steps, type(steps)) == (5000, int)

    @pytest.mark.parametrize("written", ["5e-3", "5000.5", "many", "1e300", "true", ".inf"])
    def test_what_is_no_whole_number_is_refused(self, tmp_path, written):
        text = f"algo: ppo\nenv_id: CartPole-v1\nseed: 3\ntotal_timesteps: {written}\n"
        with pytest.raises(ConfigError, match=r"total_timesteps is .*use a whole number"):
            load_config(write(tmp_path, text))

    def test_underscores_are_welcome(self, tmp_path):
        text = "algo: ppo\nenv_id: CartPole-v1\nseed: 3\ntotal_timesteps: 100_000\n"
        assert load_config(write(tmp_path, text)).total_timesteps == 100_000

    def test_a_list_is_a_tuple(self):
        config = config_from_dict(BASE | {"algorithm": {"hidden_sizes": [32, 16]}})
        assert config.algorithm.hidden_sizes == (32, 16)


class TestWordsOfYaml:
    @pytest.mark.parametrize(
        ("word", "meant"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")]
    )
    def test_on_and_off_need_no_quotes(self, tmp_path, word, meant):
        """YAML reads them as true and false."""
        path = tmp_path / "settings.yaml"
        path.write_text(f"algo: ppo\nenv_id: CartPole-v1\nrebuild_envs: {word}\n", encoding="utf-8")
        config = load_config(path)
        assert config.rebuild_envs == meant
        path.write_text(config.to_yaml(), encoding="utf-8")
        assert load_config(path) == config


class TestImpossibleValues:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("total_timesteps", -1),
            ("total_timesteps", 0),
            ("num_envs", 0),
            ("num_threads", 0),
            ("num_threads", 1025),
            ("num_eval_episodes", 0),
            ("keep_checkpoints", 0),
            ("log_every_timesteps", 0),
            ("env_timeout", 0.0),
            ("max_restarts", -1),
            ("eval_every_timesteps", -1),
            ("checkpoint_every_timesteps", -1),
            ("seed", -1),
            ("stop_after_stale_evals", 0),
            ("max_time", -1.0),
            ("env_id", ""),
        ],
    )
    def test_run_level(self, key, value):
        assert any(problem.startswith(f"{key} is ") for problem in problems_of(BASE | {key: value}))

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("gamma", 2),
            ("gamma", -0.1),
            ("gae_lambda", 1.5),
            ("num_steps", 0),
            ("batch_size", 0),
            ("update_epochs", -3),
            ("learning_rate", 0),
            ("max_grad_norm", 0),
            ("clip_coef", 0),
            ("ent_coef", -1),
            ("vf_coef", -1),
            ("target_kl", 0),
            ("hidden_sizes", [64, 0]),
        ],
    )
    def test_algorithm_level(self, key, value):
        (problem,) = problems_of(BASE | {"algorithm": {key: value}})
        assert problem.removeprefix("algorithm.").startswith(f"{key} is ")

    @pytest.mark.parametrize(
        ("key", "value"), [("gamma", 0), ("gamma", 1), ("gae_lambda", 0), ("ent_coef", 0)]
    )
    def test_the_ends_of_a_range_belong_to_it(self, key, value):
        assert getattr(config_from_dict(BASE | {"algorithm": {key: value}}).algorithm, key) == value

    @pytest.mark.parametrize("key", ["eval_every_timesteps", "checkpoint_every_timesteps"])
    def test_zero_means_only_at_the_end(self, key):
        assert getattr(config_from_dict(BASE | {key: 0}), key) == 0

    def test_a_batch_larger_than_the_rollout_is_told_with_both_sizes(self):
        (problem,) = problems_of(BASE | {"num_envs": 2, "algorithm": {"num_steps": 8, "batch_size": 17}})
        assert "batch_size is 17" in problem
        assert "16 rows" in problem

    def test_a_batch_as_large_as_the_rollout_is_fine(self):
        config = config_from_dict(BASE | {"num_envs": 2, "algorithm": {"num_steps": 8, "batch_size": 16}})
        assert config.algorithm.batch_size == 16

    def test_overrides_are_checked_too(self):
        with pytest.raises(ConfigError, match="gamma is 2"):
            TrainConfig(**BASE).with_overrides(gamma=2)


class TestAllProblemsAtOnce:
    def test_unknown_keys_types_and_values_of_both_levels(self):
        found = problems_of(
            BASE
            | {
                "num_env": 4,
                "seed": "x",
                "total_timesteps": -1,
                "algorithm": {"gama": 0.9, "num_steps": "y", "ent_coef": "z"},
            }
        )
        for culprit in (
            "'num_env'",
            "seed is 'x'",
            "'algorithm.gama'",
            "num_steps is 'y'",
            "ent_coef is 'z'",
        ):
            assert sum(culprit in problem for problem in found) == 1, culprit

    def test_several_impossible_values(self):
        found = problems_of(BASE | {"num_envs": 0, "total_timesteps": -1, "algorithm": {"gamma": 2}})
        for culprit in ("num_envs is 0", "total_timesteps is -1", "gamma is 2"):
            assert sum(culprit in problem for problem in found) == 1, culprit

    def test_a_wrong_type_does_not_hide_an_impossible_value(self):
        found = problems_of(BASE | {"seed": "x", "total_timesteps": -1, "algorithm": {"gamma": 2}})
        for culprit in ("seed is 'x'", "total_timesteps is -1", "gamma is 2"):
            assert sum(culprit in problem for problem in found) == 1, culprit

    def test_the_message_lists_each_and_names_the_file(self, tmp_path):
        path = write(tmp_path, "algo: ppo\nenv_id: CartPole-v1\nnum_env: 3\nsede: 4\n")
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        message = str(caught.value)
        assert message.startswith(f"{path}:")
        assert message.count("\n  - ") == 2


class TestFiles:
    def test_a_key_written_twice(self, tmp_path):
        with pytest.raises(UserError, match="'seed' is written twice"):
            load_config(write(tmp_path, "algo: ppo\nenv_id: CartPole-v1\nseed: 3\nseed: 4\n"))

    def test_a_key_written_twice_one_level_down(self, tmp_path):
        text = "algo: ppo\nenv_id: CartPole-v1\nalgorithm:\n  gamma: 0.9\n  gamma: 0.8\n"
        with pytest.raises(UserError, match="'gamma' is written twice"):
            load_config(write(tmp_path, text))

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("- a\n- b\n", "holds list, not a map"),
            ("just words\n", "holds str, not a map"),
            ("", "is empty; write lines such as 'algo: ppo'"),
        ],
    )
    def test_what_is_no_map(self, tmp_path, text, found):
        with pytest.raises(UserError, match=found):
            load_config(write(tmp_path, text))

    @pytest.mark.parametrize(
        "text",
        [
            "algo: [ppo\n",
            "algo: ppo\n\tseed: 1\n",
            "a: b: c\n",
            "algo: !!python/name:os.system\n",
            "algo: {{ algo }}\n",
        ],
    )
    def test_broken_yaml_is_one_sentence_that_names_the_file(self, tmp_path, text):
        path = write(tmp_path, text)
        with pytest.raises(UserError, match="not valid YAML") as caught:
            load_config(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_bytes_that_are_no_text(self, tmp_path):
        path = tmp_path / "settings.yaml"
        path.write_bytes(b"algo: \xff\xfe\n")
        with pytest.raises(UserError, match=r"settings\.yaml.*: 'utf-8' codec can't decode"):
            load_config(path)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(UserError, match=r"nothing\.yaml does not exist"):
            load_config(tmp_path / "nothing.yaml")

    def test_a_folder(self, tmp_path):
        with pytest.raises(UserError, match="is a folder, not a config file"):
            load_config(tmp_path)

    @pytest.mark.parametrize("name", ["configs/ppo/cartpole.yaml", "ppo/cartpole", "ppo/cartpole.yaml"])
    def test_presets_are_found_from_any_folder(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        assert load_config(name) == load_config(CONFIGS / "ppo" / "cartpole.yaml")

    def test_a_misspelt_preset_is_suggested(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UserError, match="did you mean 'ppo/cartpole'"):
            load_config("configs/ppo/cartpol.yaml")

    def test_a_file_of_the_users_own_comes_before_a_preset(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "ppo").mkdir()
        (tmp_path / "ppo" / "cartpole.yaml").write_text(
            "algo: ppo\nenv_id: Mine-v0\nseed: 3\n", encoding="utf-8"
        )
        assert load_config("ppo/cartpole.yaml").env_id == "Mine-v0"


class TestRoundTrip:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {
                "env_kwargs": {"map_name": "4x4", "is_slippery": False, "sizes": [1, 2]},
                "env_backend": "async",
            },
            {"stop_at_reward": -3.5, "max_time": 60.0, "stop_after_stale_evals": 4, "normalize_obs": True},
            {"hidden_sizes": (32, 16, 8), "learning_rate": 1e-7, "target_kl": 0.02, "activation": "relu"},
            {"env_id": "module.sub:Id-v0", "output_dir": "a folder: with # marks", "hidden_sizes": ()},
        ],
    )
    def test_yaml_and_back_is_the_identity(self, tmp_path, changes):
        config = TrainConfig(**BASE).with_overrides(**changes)
        again = load_config(write(tmp_path, config.to_yaml()))
        assert again == config
        assert again.to_yaml() == config.to_yaml()
        assert again.fingerprint() == config.fingerprint()

    def test_every_setting_is_written(self):
        data = TrainConfig(**BASE).to_dict()
        assert set(data) == {item.name for item in fields(TrainConfig)}
        assert set(data["algorithm"]) == {item.name for item in fields(PPOConfig)}


class TestOverrides:
    def test_both_levels_at_once(self):
        before = TrainConfig(**BASE)
        after = before.with_overrides(num_envs=3, learning_rate=1e-4, seed=9)
        assert (after.num_envs, after.seed, after.algorithm.learning_rate) == (3, 9, 1e-4)
        assert (before.num_envs, before.algorithm.learning_rate) == (8, 3e-4)
        assert after.algorithm.gamma == before.algorithm.gamma

    def test_a_whole_algorithm_config_with_one_setting_on_top(self):
        after = TrainConfig(**BASE).with_overrides(algorithm=PPOConfig(gamma=0.5), gae_lambda=0.25)
        assert (after.algorithm.gamma, after.algorithm.gae_lambda) == (0.5, 0.25)

    def test_a_config_cannot_be_changed_in_place(self):
        with pytest.raises(AttributeError):
            TrainConfig(**BASE).seed = 4


class TestMisplacedSchedules:
    def test_a_schedule_in_its_place_is_named(self):
        for value in (lambda fraction: 1e-3, "my_module:decay", "linear", [[0, 1], [1, 0.1]]):
            with pytest.raises(ConfigError, match="learning_rate is") as error:
                TrainConfig(**BASE).with_overrides(learning_rate=value)
            assert "learning_rate_schedule" in str(error.value)
        with pytest.raises(ConfigError) as error:
            TrainConfig(**BASE).with_overrides(learning_rate="fast")
        assert "learning_rate_schedule" not in str(error.value)
        with pytest.raises(ConfigError) as error:
            TrainConfig(**BASE).with_overrides(gamma="linear")  # it has no schedule
        assert "schedule" not in str(error.value)


NOT_IN_FINGERPRINT = {
    "seed": 99, "output_dir": "elsewhere", "device": "cpu", "num_threads": 2, "update_path": "autograd",
    "env_timeout": 7.0, "rebuild_envs": "off", "max_restarts": 7, "checkpoint_every_timesteps": 7,
    "keep_checkpoints": 7, "log_every_timesteps": 7, "info_keywords": ("fuel",),
    "log_histograms_every": 7, "track": "wandb", "max_time": 7.0, "engine": "process", "num_samplers": 0,
    "num_learners": 1, "max_sampler_restarts": 7, "max_dataset_memory": 7,
}  # fmt: skip
OF_RAY = {"ray_address": "auto", "ray_resources": {"CPU": 2}, "ray_placement": "pack"}
COUNTING = {
    "env_id": "Acrobot-v1", "total_timesteps": 7, "num_envs": 4, "env_backend": "async", "env_kwargs": {"a": 1},
    "normalize_obs": True, "normalize_reward": True, "eval_every_timesteps": 7, "num_eval_episodes": 7,
    "eval_deterministic": False, "max_eval_episode_steps": 7, "stop_at_reward": 7.0, "stop_after_stale_evals": 7,
    "algorithm": PPOConfig(gamma=0.7), "preprocessing": "atari", "use_action_masks": "off",
    "max_episode_steps": 7, "env_wrappers": ("a:B",), "best_by": "success", "env_groups": 2, "lag": 1,
    "max_policy_lag": 7, "learner_shards": 2, "policies": "each", "agent_ids": "on", "opponents": "pool",
    "eval_against": "random", "critic_obs": ("a",),
}  # fmt: skip
POOL_COUNTING = {"opponent_sampling": "recent", "opponent_update_every": 7, "opponent_pool_size": 7}
ATARI_COUNTING = {
    "image_size": 42, "grayscale": False, "frame_stack": 2, "noop_max": 7, "frame_skip": 2, "max_pool": False,
    "terminal_on_life_loss": False, "fire_reset": False, "clip_reward": False,
}  # fmt: skip


OF_DATASETS = {"dataset": "d", "total_updates": 7, "held_out_fraction": 0.2}
BESIDE_DATASETS = {"dataset_fraction": 0.5}


class TestFingerprint:
    def test_every_setting_is_known_to_count_or_not_to(self):
        names = [
            *NOT_IN_FINGERPRINT,
            *OF_RAY,
            *COUNTING,
            *ATARI_COUNTING,
            *POOL_COUNTING,
            *OF_DATASETS,
            *BESIDE_DATASETS,
            "algo",
        ]
        assert sorted(names) == sorted(item.name for item in fields(TrainConfig))

    @pytest.mark.parametrize("name", NOT_IN_FINGERPRINT)
    def test_which_try_where_and_what_is_written_down_do_not_count(self, name):
        config = TrainConfig(**BASE)
        assert config.with_overrides(**{name: NOT_IN_FINGERPRINT[name]}).fingerprint() == config.fingerprint()

    @pytest.mark.parametrize("name", OF_RAY)
    def test_settings_of_the_cluster_do_not_count(self, name):
        config = TrainConfig(**BASE)
        assert (
            config.with_overrides(engine="ray", **{name: OF_RAY[name]}).fingerprint() == config.fingerprint()
        )

    @pytest.mark.parametrize("name", [*OF_DATASETS, *BESIDE_DATASETS])
    def test_settings_of_datasets_count(self, name):
        config = TrainConfig(algo="td3", dataset="c")
        changed = {name: (OF_DATASETS | BESIDE_DATASETS)[name]}
        assert config.with_overrides(**changed).fingerprint() != config.fingerprint()

    def test_groups_are_as_even_as_possible_the_larger_ones_first(self):
        assert TrainConfig(**BASE, num_envs=8, env_groups=3).group_sizes == [3, 3, 2]

    @pytest.mark.parametrize(
        ("settings", "culprit"),
        [
            ({"env_groups": 9}, "env_groups is 9"),
            ({"lag": 2}, "lag is 2"),
            ({"lag": "never"}, "use free, or a whole number"),
            ({"num_samplers": 2, "engine": "process"}, "num_samplers is 2, but env_groups is 1"),
            ({"num_learners": 2, "engine": "process"}, "num_learners is 2, but learner_shards is 1"),
            ({"num_samplers": 2, "env_groups": 2}, "engine 'local' has one process"),
            ({"ray_address": "auto"}, "ray_address is given, but engine is 'local'"),
            ({"engine": "ray", "ray_resources": {"CPU": "many"}}, "ray_resources has CPU 'many'"),
            ({"engine": "ray", "ray_resources": {"memory": 2**53}}, "ray_resources has memory"),
        ],
    )
    def test_engine_settings_that_contradict_each_other(self, settings, culprit):
        with pytest.raises(ConfigError, match=culprit):
            TrainConfig(**BASE, num_envs=8, **settings)

    def test_what_matters_to_the_result_counts(self):
        config = TrainConfig(**BASE)
        prints = [config.with_overrides(**{key: value}).fingerprint() for key, value in COUNTING.items()]
        games = config.with_overrides(preprocessing="atari")
        prints += [
            games.with_overrides(**{key: value}).fingerprint() for key, value in ATARI_COUNTING.items()
        ]
        pool = config.with_overrides(opponents="pool")
        prints += [pool.with_overrides(**{key: value}).fingerprint() for key, value in POOL_COUNTING.items()]
        counted = len(COUNTING) + len(ATARI_COUNTING) + len(POOL_COUNTING)
        assert len({config.fingerprint(), *prints}) == counted + 1

    def test_masks_that_a_run_found_for_itself_are_no_other_experiment(self):
        config = TrainConfig(**BASE)
        assert config.with_overrides(use_action_masks="on").fingerprint() == config.fingerprint()

    def test_a_default_that_is_written_down_is_still_the_default(self):
        config = TrainConfig(**BASE)
        assert config.with_overrides(num_envs=8, gamma=0.99).fingerprint() == config.fingerprint()

    def test_a_new_setting_makes_no_old_result_stale(self, monkeypatch):
        """At its default it is not there; otherwise it is another experiment."""

        @dataclass(frozen=True, kw_only=True)
        class Newer(PPOConfig):
            fresh: int = 3

        before = TrainConfig(**BASE).fingerprint()
        monkeypatch.setattr(ALGORITHMS["ppo"], "config_class", Newer)
        assert TrainConfig(**BASE).fingerprint() == before
        assert TrainConfig(**BASE, algorithm=Newer(fresh=4)).fingerprint() != before


class TestPreprocessing:
    @pytest.mark.parametrize(
        ("settings", "size", "grayscale", "stack"),
        [
            ({}, None, False, 1),
            ({"preprocessing": "image"}, None, False, 1),
            ({"preprocessing": "atari"}, 84, True, 4),
            ({"preprocessing": "image", "image_size": 42, "grayscale": True, "frame_stack": 3}, 42, True, 3),
            (
                {"preprocessing": "atari", "image_size": 42, "grayscale": False, "frame_stack": 1},
                42,
                False,
                1,
            ),
        ],
    )
    def test_what_is_not_given_means_what_is_usual(self, settings, size, grayscale, stack):
        config = TrainConfig(**BASE, **settings)
        assert config.frames == Frames(image_size=size, grayscale=grayscale, stack=stack)
        assert config.frames.stack == stack

    @pytest.mark.parametrize("name", ATARI_COUNTING)
    @pytest.mark.parametrize("kind", ["none", "image"])
    def test_a_setting_that_nothing_would_read_is_refused(self, kind, name):
        given = {"preprocessing": kind, name: ATARI_COUNTING[name]}
        if kind == "image" and name in IMAGE_SETTINGS:
            TrainConfig(**BASE, **given)
            return
        with pytest.raises(ConfigError) as caught:
            TrainConfig(**BASE, **given)
        (problem,) = caught.value.problems
        assert problem.startswith(
            f"{name} is {ATARI_COUNTING[name]}, but preprocessing '{kind}' does not use it"
        )
        assert problem.endswith("image or atari" if name in IMAGE_SETTINGS else "to atari")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("image_size", 0), ("image_size", 2049), ("frame_stack", 0), ("frame_stack", 65), ("noop_max", -1),
         ("frame_skip", 0), ("frame_skip", 65)],
    )  # fmt: skip
    def test_impossible_sizes_are_refused(self, name, value):
        with pytest.raises(ConfigError, match=f"{name} is {value}; use a number from"):
            TrainConfig(**BASE, preprocessing="atari", **{name: value})

    def test_settings_at_their_defaults_may_be_written_down(self):
        config = TrainConfig(**BASE)
        assert config_from_dict(config.to_dict()) == config


class TestNames:
    @pytest.mark.parametrize("algo", sorted(ALGORITHMS))
    def test_run_level_and_algorithm_level_never_clash(self, algo):
        run_level = {item.name for item in fields(TrainConfig)} | {"config", "quiet", "debug"}
        assert not run_level & {item.name for item in fields(ALGORITHMS[algo].config_class)}

    def test_every_run_level_field_stands_in_exactly_one_help_group(self):
        grouped = [name for names in RUN_GROUPS.values() for name in names]
        assert len(grouped) == len(set(grouped))
        assert set(grouped) == {item.name for item in fields(TrainConfig)} - {"algo", "algorithm"}

    @pytest.mark.parametrize("config_class", [TrainConfig, *(a.config_class for a in ALGORITHMS.values())])
    def test_every_field_has_a_sentence_of_help(self, config_class):
        docs = field_docs(config_class)
        for item in fields(config_class):
            assert item.name in docs, f"{item.name} has no docstring under it"
            assert docs[item.name].text.endswith("."), f"the docstring under {item.name} is no sentence"


def test_a_config_that_could_not_be_read_again_is_refused():
    with pytest.raises(ConfigError, match="more than 10,000 values"):
        TrainConfig(algo="ppo", env_id="X", algorithm=PPOConfig(encoder_kwargs={"sizes": [1] * 10_000}))


def test_another_engine_drops_what_it_does_not_have():
    config = TrainConfig(
        algo="ppo", env_id="CartPole-v1", seed=1, env_groups=2, learner_shards=2, engine="ray", num_samplers=2,
        num_learners=2, ray_address="auto", ray_resources={"CPU": 2},
    )  # fmt: skip
    process, local = (config.with_overrides(engine=engine) for engine in ("process", "local"))
    assert (process.num_samplers, process.num_learners) == (2, 2)
    assert (local.num_samplers, local.num_learners) == ("auto", "auto")
    assert all((each.ray_address, each.ray_resources) == (None, {}) for each in (process, local))
    assert config.with_overrides(engine="ray").ray_address == "auto"
    with pytest.raises(ConfigError, match="num_samplers is 2, but engine 'local' has one process"):
        process.with_overrides(engine="local", num_samplers=2)


def test_a_file_with_a_dataset_names_no_environment():
    config = config_from_dict({"algo": "td3_bc", "dataset": "data"})
    assert (config.env_id, config.dataset) == ("", "data")
    assert load_config(ROOT / "configs/td3_bc/pendulum_mixed.yaml").env_id == ""
    with pytest.raises(ConfigError, match="key 'algo' is missing") as raised:
        config_from_dict({"dataset": "data"})
    assert len(raised.value.problems) == 1
