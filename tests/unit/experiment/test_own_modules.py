"""Modules of this package with environments are no stranger's; all others of its modules may do something."""

import pytest

from rl_training.experiment.checkpoints.trust import module_is_imported


@pytest.mark.parametrize(
    ("name", "harmless"),
    [
        ("CartPole-v1", True),
        ("rl_training.envs.tasks:rl_training/Catch-v0", True),
        ("rl_training.envs.tasks:rl_training/MinAtar-v0", True),
        ("rl_training.cli.__main__:Env-v0", False),
        ("rl_training.nowhere:Env-v0", False),
        ("no_such_module:Env-v0", False),
    ],
)
def test_which_modules_may_be_imported_for_anybody(name: str, harmless: bool) -> None:
    assert module_is_imported(name) is harmless
