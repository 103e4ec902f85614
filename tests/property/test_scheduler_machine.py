"""Whatever hosts do and whenever they are lost, the scheduler learns from every rollout once and in order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.experiment.throughput import Costs, Linear
from rl_training.runtime.scheduled_sampler import TICKETS_AT_ONCE
from support.virtual_crew import Trouble, free_problems, problems
from support.virtual_runs import Setting, VirtualRun

SECONDS = st.floats(0.0, 60.0)
STRIKES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), SECONDS), max_size=5)
"""Lost hosts: the iteration, the host, and the seconds after the beginning of the iteration."""


def iterated(run: VirtualRun, strikes: list[tuple[int, int, float]], iterations: int) -> VirtualRun:
    for iteration in range(iterations):
        for at, host, seconds in strikes:
            if at == iteration:
                run.crew.strike(host % run.setting.num_hosts, seconds)
        run.iterate(1)
    return run


@settings(max_examples=60, deadline=None)
@given(
    lag=st.sampled_from([0, 1, "free"]),
    groups=st.integers(1, 5),
    hosts=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    iterations=st.tuples(st.integers(0, 4), st.integers(1, 4)),
    update=SECONDS,
    noise=st.floats(0.0, 1.0),
    hanging=st.floats(0.0, 1.0),
    max_policy_lag=st.integers(1, 2),
    strikes=st.tuples(STRIKES, STRIKES),
    seed=st.integers(0, 2**31),
)
def test_every_rollout_is_learned_from_once_before_and_after_a_checkpoint(
    lag, groups, hosts, iterations, update, noise, hanging, max_policy_lag, strikes, seed
):
    costs = Costs(
        num_envs=2 * groups, num_steps=4, step=Linear(1.0, 1.0), act=Linear(), update=update, message=0.5
    )
    trouble = Trouble(noise=noise, hanging=hanging, straggling=0.1)
    run = None
    for number in (0, 1):
        setting = Setting(
            costs=costs,
            num_groups=groups,
            num_hosts=min(hosts[number], groups),
            lag=lag,
            max_policy_lag=max_policy_lag,
            trouble=trouble,
            seed=seed + number,
        )
        run = VirtualRun(setting, None if run is None else run.save())
        iterated(run, strikes[number], iterations[number])
    assert run is not None
    if lag == "free":
        *wrong, (dropped, _) = free_problems(run.source.learned, groups, max_policy_lag)
        assert wrong == []
        second = run.sampler.metrics()["rollout/dropped"]
        assert second <= dropped
        assert sum(run.crew.issued) == iterations[1] * groups + second + TICKETS_AT_ONCE * groups
    else:
        assert list(problems(run.source.learned, groups, lag, costs.timesteps)) == []
