"""Benchmarks as files: what is wrong is told by its key, all at once."""

from pathlib import Path

import pytest

from loading import ROOT
from rl_training.config.presets import presets, read_presets
from rl_training.core.errors import ConfigError, UserError
from rl_training.lab.benchmark_jobs import benchmark_jobs, contenders
from rl_training.lab.manifests import manifests, read_manifest, seed_range


def written(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return file


def test_every_family_has_one_and_they_cover_the_zoo():
    families = {preset.about.family for preset in read_presets()}
    assert {name for name in manifests() if "/" not in name} == families
    listed = [entry.preset for family in families for entry in read_manifest(family).entries]
    assert sorted(listed) == sorted(presets())


def test_references_name_tasks_of_the_benchmark():
    for family in manifests():
        manifest = read_manifest(family)
        chosen = {entry.preset for entry in manifest.entries}
        assert set(manifest.references) <= {preset.task for preset in read_presets() if preset.name in chosen}


def test_found_by_path_and_by_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        read_manifest("zoo/atari/benchmark.yaml")
        == read_manifest("atari")
        == read_manifest(ROOT / "zoo/atari/benchmark.yaml")
    )
    with pytest.raises(UserError, match="benchmark zoo/atary does not exist; did you mean 'atari'"):
        read_manifest("zoo/atary")


def test_everything_wrong_is_told_at_once(tmp_path):
    text = """
    sed: 3
    seeds: 0
    overrides: [1]
    presets:
      - ppo/cartpol
      - 7
      - {preset: ppo/cartpole, nam: x, published: {mean: high, stdd: 1}}
    references:
      CartPole-v1: {low: 1}
    """
    with pytest.raises(ConfigError) as caught:
        read_manifest(written(tmp_path, text))
    assert caught.value.problems == [
        "unknown key 'sed'; did you mean 'seeds'?",
        "presets[0] is 'ppo/cartpol', which does not exist; did you mean 'ppo/cartpole'?",
        "presets[1] is 7; use the name of a preset, or a mapping with 'preset:'",
        "unknown key 'presets[2].nam'; did you mean 'name'?",
        "unknown key 'presets[2].published.stdd'; did you mean 'std'?",
        "presets[2].published.mean is 'high'; use a number",
        "references.CartPole-v1.high is missing",
        "seeds is 0; use a number from 1 to 10,000, or a range such as 21-25",
        "overrides is [1]; use a mapping of settings",
    ]


def test_references_the_wrong_way_round(tmp_path):
    text = "presets: [ppo/cartpole]\nreferences: {CartPole-v1: {low: 500, high: 20}}\n"
    with pytest.raises(ConfigError, match="low is 500 and high is 20; low must be less than high"):
        read_manifest(written(tmp_path, text))


def test_a_config_of_ones_own_may_take_part(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("algo: ppo\nenv_id: CartPole-v1\n")
    manifest = read_manifest(written(tmp_path, f"presets: [{own}, zoo/classic/dqn_cartpole.yaml]\n"))
    assert [entry.preset for entry in manifest.entries] == [str(own), "dqn/cartpole"]
    assert list(manifest.seeds) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("written_as", "meant"),
    [(3, [1, 2, 3]), ("3", [1, 2, 3]), ("21-23", [21, 22, 23]), ("7-7", [7]), ("0-1", [0, 1])],
)
def test_seeds_are_a_number_of_them_or_first_and_last(written_as, meant):
    assert list(seed_range(written_as)) == meant


@pytest.mark.parametrize(
    "wrong", [0, -1, True, 2.5, "five", "5-3", "1,2", "-3", "3-", "", None, [1], 10_001, "1-10001", "9" * 40]
)
def test_what_is_no_seeds(wrong):
    assert seed_range(wrong) is None


def test_settings_of_a_preset_lie_above_those_of_all(tmp_path):
    text = """
    seeds: 21-22
    presets:
      - ppo/cartpole
      - {preset: dqn/cartpole, overrides: {total_timesteps: 300}}
    overrides: {total_timesteps: 200, eval_every_timesteps: 100}
    """
    manifest = read_manifest(written(tmp_path, text))
    ours = contenders(manifest, {})
    assert [item.config.total_timesteps for item in ours] == [200, 300]
    assert [item.config.eval_every_timesteps for item in ours] == [100, 100]
    assert [item.config.total_timesteps for item in contenders(manifest, {"total_timesteps": 50})] == [50, 50]
    assert [job.config.seed for job in benchmark_jobs(ours, manifest.seeds)] == [21, 21, 22, 22]


def test_settings_of_a_preset_that_are_no_map(tmp_path):
    with pytest.raises(ConfigError, match=r"presets\[0\].overrides is 5; use a mapping of settings"):
        read_manifest(written(tmp_path, "presets: [{preset: ppo/cartpole, overrides: 5}]\n"))


def test_no_presets(tmp_path):
    with pytest.raises(ConfigError, match="presets is None; use a list"):
        read_manifest(written(tmp_path, "seeds: 3\n"))


def test_figures_that_cannot_be(tmp_path):
    text = "presets: [{preset: ppo/cartpole, name: 3, published: {mean: 1, std: -1, num_seeds: 0}}]\n"
    with pytest.raises(ConfigError) as caught:
        read_manifest(written(tmp_path, text))
    assert caught.value.problems == [
        "presets[0].published.std is -1; use 0 or more",
        "presets[0].published.num_seeds is 0; use a whole number, 1 or more",
        "presets[0].name is 3; use text",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nowhere.yaml", "the file nowhere.yaml does not exist; families are agents, atari"),
        ("mini.yaml", "the file mini.yaml does not exist; families are agents, atari"),
        ("/no/where", "the file /no/where does not exist; families are agents, atari"),
        (
            "zoo/clasic/benchmark.yaml",
            "the file zoo/clasic/benchmark.yaml does not exist; did you mean 'classic'?; families are agents, atari",
        ),
        ("missing", "benchmark missing does not exist; families are agents, atari"),
        (
            "minigrit",
            "benchmark minigrit does not exist; did you mean 'minigrid'?; families are agents, atari",
        ),
        (".", ". is a folder; give a manifest or a family; families are agents, atari"),
    ],
)
def test_what_is_not_there_is_called_what_it_would_be(tmp_path, monkeypatch, given, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read_manifest(given)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; write lines such as 'presets: [ppo/cartpole]'"),
        ("- ppo/cartpole\n", "holds list, not a map; write lines such as 'presets: [ppo/cartpole]'"),
        ("presets: [ppo/cartpole, configs/ppo/cartpole.yaml]\n", "which is listed twice; list it once"),
        (
            "presets: [{preset: ppo/cartpole, name: a}, {preset: ppo/cartpole, name: b}]\n",
            "is listed twice",
        ),
        ("presets: [ppo/cartpole]\nreferences: {CartPole-v1: }\n", "references.CartPole-v1.low is missing"),
        ("presets: [ppo/cartpole]\noverrides: {3: 4}\n", "overrides.3 is not a setting; use names"),
        ("presets: [ppo/cartpole]\noverrides: {seed: 3}\n", "use 'seeds', such as 21-25"),
        ("presets: [ppo/cartpole]\noverrides: {algo: dqn}\n", "overrides.algo cannot be set in a benchmark"),
        ("presets: [ppo/cartpole]\noverrides: {output_dir: x}\n", "use the flag --output-dir"),
        (
            "presets: [ppo/cartpole]\nseeds: 1e9\n",
            "seeds is '1e9'; use a number from 1 to 10,000, or a range such as 21-25",
        ),
        ("presets: [ppo/nothing]\n", "presets[0] is 'ppo/nothing', which does not exist"),
    ],
)
def test_what_would_go_wrong_or_be_left_out_later_is_refused(tmp_path, text, sentence):
    with pytest.raises(UserError) as caught:
        read_manifest(written(tmp_path, text))
    assert sentence in str(caught.value)
    assert "did you mean 'ppo/ant'" not in str(caught.value)


def test_seeds_are_a_count_like_any_other(tmp_path):
    assert read_manifest(written(tmp_path, "presets: [ppo/cartpole]\nseeds: 1e1\n")).seeds == range(1, 11)


def test_a_file_of_ones_own_is_not_taken_for_the_preset_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "configs" / "ppo" / "cartpole.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("algo: ppo\nenv_id: CartPole-v1\n")
    manifest = read_manifest(written(tmp_path, "presets: [configs/ppo/cartpole.yaml, ppo/cartpole]\n"))
    assert [entry.preset for entry in manifest.entries] == ["configs/ppo/cartpole.yaml", "ppo/cartpole"]
    monkeypatch.chdir(ROOT)
    manifest = read_manifest(written(tmp_path, "presets: [configs/ppo/cartpole.yaml]\n"))
    assert [entry.preset for entry in manifest.entries] == ["ppo/cartpole"]


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    file = written(tmp_path, "")
    file.write_bytes(b"presets: [\xff]\n")
    with pytest.raises(UserError, match=r"cannot be read: .*; save it as UTF-8"):
        read_manifest(file)

    def refuse(self, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match=r"mine\.yaml cannot be read: Permission denied$"):
        read_manifest(file)
