import json
from itertools import product

import numpy as np
import pytest

from rl_training.core import seeding
from rl_training.core.seeding import (
    episode_seed,
    generator_state,
    numpy_generator,
    set_generator_state,
)

GOLDEN = [1745121092, 3118849296, 4278478435, 1730298833]
STREAMS = [
    seeding.EPISODES,
    seeding.EVALUATION_EPISODES,
    seeding.ACTIONS,
    seeding.MINIBATCHES,
    seeding.EVALUATION_ACTIONS,
    seeding.ACTION_SPACES,
]


def test_stream_numbers_are_distinct() -> None:
    assert len(set(STREAMS)) == len(STREAMS)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_repeats_itself(stream: int) -> None:
    assert np.array_equal(numpy_generator(3, stream).random(50), numpy_generator(3, stream).random(50))


def test_streams_and_seeds_are_independent() -> None:
    draws = np.stack([numpy_generator(seed, stream).random(4000) for seed in (0, 1) for stream in STREAMS])
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 0.08  # five deviations of 1/sqrt(4000)


def test_drawing_from_one_stream_does_not_move_another() -> None:
    actions = numpy_generator(0, seeding.ACTIONS)
    numpy_generator(0, seeding.MINIBATCHES).random(10)
    assert np.array_equal(actions.random(5), numpy_generator(0, seeding.ACTIONS).random(5))


def test_episode_seed_depends_on_seed_env_episode_and_stream() -> None:
    seeds = [episode_seed(*where) for where in product(range(4), range(4), range(4), range(2))]
    assert len(set(seeds)) == len(seeds)


def test_episode_seed_is_a_fixed_function_that_fits_32_bits() -> None:
    for episode in (200, 5, 63, 64, 0):  # in any order: a block of seeds is made at once
        block, place = divmod(episode, seeding.EPISODE_BLOCK)
        sequence = np.random.SeedSequence(7, spawn_key=(seeding.EPISODES, 2, block))
        assert episode_seed(7, 2, episode) == sequence.generate_state(seeding.EPISODE_BLOCK)[place]
    assert [episode_seed(7, 2, episode) for episode in (0, 5, 63, 64)] == GOLDEN, "old runs would not resume"
    assert all(0 <= episode_seed(seed, 0, 0) < 2**32 for seed in (0, 1, 2**40))
    assert all(type(episode_seed(0, 0, episode)) is int for episode in range(3))


def test_no_two_episodes_of_a_run_have_the_same_seed() -> None:
    seeds = [episode_seed(1, env, episode) for env in range(8) for episode in range(300)]
    assert len(set(seeds)) == len(seeds)


def test_generator_state_survives_json_in_the_middle_of_a_stream() -> None:
    generator = numpy_generator(1, seeding.ACTIONS)
    generator.random(7)
    generator.integers(0, 10, dtype=np.uint32)  # leaves half a word behind
    saved = json.loads(json.dumps(generator_state(generator)))
    expected = [generator.integers(0, 10, dtype=np.uint32), *generator.standard_normal(5)]
    other = numpy_generator(99, seeding.MINIBATCHES)
    set_generator_state(other, saved)
    assert [other.integers(0, 10, dtype=np.uint32), *other.standard_normal(5)] == expected


def test_a_saved_state_does_not_move_with_its_generator() -> None:
    generator = numpy_generator(1, seeding.ACTIONS)
    saved = generator_state(generator)
    before = json.dumps(saved)
    generator.random(3)
    assert json.dumps(saved) == before
    assert json.dumps(generator_state(generator)) != before


def test_groups_have_independent_streams_and_no_group_has_the_stream_of_a_local_run() -> None:
    """The local stream is the one of a spawn key with the stream's number alone, to the bit."""
    local = np.random.Generator(np.random.PCG64(np.random.SeedSequence(3, spawn_key=(seeding.ACTIONS,))))
    assert np.array_equal(numpy_generator(3, seeding.ACTIONS).random(50), local.random(50))
    keys = [(stream, group) for stream in (seeding.ACTIONS, seeding.REPLAY) for group in (None, 0, 1, 2)]
    draws = np.stack([numpy_generator(3, stream, group).random(4000) for stream, group in keys])
    correlations = np.corrcoef(draws) - np.eye(len(keys))
    assert np.abs(correlations).max() < 0.08
    again = numpy_generator(3, seeding.ACTIONS, 1).random(50)
    assert np.array_equal(again, numpy_generator(3, seeding.ACTIONS, group=1).random(50))
