"""The command of a job on a node, without a cluster: its output, its signals, and what the node lacks."""

import os
import re
import signal
import sys
import threading
import time

import pytest

from rl_training.core.errors import UserError
from rl_training.lab.jobs import Job
from rl_training.lab.launcher import launch
from rl_training.lab.ray_command import Command, Order
from rl_training.lab.ray_place import FORWARDED
from rl_training.runtime.ray_cluster import refuse_bad_address
from rl_training.version import __version__
from support.configs import tiny_config


@pytest.fixture
def order(tmp_path):
    """Make an order for a program that plays the child."""

    def made(program: str, **changes) -> Order:
        script = tmp_path / "child.py"
        script.write_text(program)
        plain = {
            "child": (str(script),),
            "command": ("train", "--quiet"),
            "home": str(tmp_path),
            "files": ("output.txt", "errors.txt"),
            "folder": str(tmp_path),
            "variables": {name: os.environ.get(name) for name in FORWARDED} | {"OMP_NUM_THREADS": None},
            "version": __version__,
        }
        return Order(**plain | changes)

    return made


def test_it_runs_in_the_folder_with_the_launchers_variables(order, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ.get('OMP_NUM_THREADS')); sys.exit(7)"
    )
    assert Command().run(order(program)) == 7
    said = (tmp_path / "output.txt").read_text().strip()
    assert said == f"{[str(os.getpid()), '', 'train', '--quiet']} {tmp_path} None"


def test_signals_arrive_also_before_the_process_exists(order):
    waits = "import time; time.sleep(60)"
    early = Command()
    early.send(signal.SIGTERM)
    assert early.run(order(waits)) == -signal.SIGTERM
    late, codes = Command(), []
    thread = threading.Thread(target=lambda: codes.append(late.run(order(waits))))
    thread.start()
    while late._process is None:
        time.sleep(0.01)
    late.send(signal.SIGTERM)
    thread.join(30)
    assert codes == [-signal.SIGTERM]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"home": "/no/such/folder"}, "does not see the folder /no/such/folder; .* on storage that all nodes share"),
        ({"folder": "/no/such/folder"}, "does not see the folder"),
        ({"version": "0.0.1"}, rf"has rl_training {re.escape(__version__)}, but this is 0.0.1; install one version"),
    ],
)  # fmt: skip
def test_what_a_node_lacks_is_reported(order, changes, said):
    outcome = Command().run(order("", **changes))
    assert isinstance(outcome, str)
    assert re.search(said, outcome), outcome


def test_a_node_without_the_package_is_reported(order, monkeypatch):
    monkeypatch.setattr("rl_training.lab.ray_command.VERSION", ("-c", "import no_such_package"))
    outcome = Command().run(order(""))
    assert isinstance(outcome, str)
    assert re.search(r"cannot import rl_training in .* \(.+\); install it on all nodes", outcome)


@pytest.mark.parametrize("address", ["nonsense", "ray://host:10001", "host:port", "", "host:123456", "a b:1"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UserError, match=r"ray_address is .*; use HOST:PORT of the cluster's head, auto"):
        refuse_bad_address(address)


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "head.local:6379", "[::1]:6379"])
def test_an_address_that_could_be_one_is_accepted(address):
    refuse_bad_address(address)


def test_a_launch_without_ray_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    job = Job("tiny", tiny_config("ppo", "unused", env_id="CartPole-v1"))
    with pytest.raises(UserError, match=r"engine 'ray' needs .*: pip install 'rl-training\[ray\]'"):
        launch([job], tmp_path, engine="ray")


def test_bad_engines_are_refused(tmp_path):
    job = Job("tiny", tiny_config("ppo", "unused", env_id="CartPole-v1"))
    with pytest.raises(UserError, match="engine is 'spark'; use process or ray"):
        launch([job], tmp_path, engine="spark")
    with pytest.raises(UserError, match="ray_address is given, but engine is 'process'; use engine ray"):
        launch([job], tmp_path, ray_address="auto")
