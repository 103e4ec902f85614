"""Train one algorithm of d3rlpy on a dataset in columns; runs in a venv that has it. Prints CPU seconds per update.

The trained policy is written as TorchScript, which the caller evaluates in its own environment.
"""

import argparse
import json
import time

import d3rlpy
import numpy as np
import torch
from d3rlpy.models import VectorEncoderFactory


def config_of(algo: str, settings: dict):
    """Return d3rlpy's config with the settings of ours."""
    encoder = VectorEncoderFactory(list(settings["hidden_sizes"]))
    rate, shared = (
        settings["learning_rate"],
        {"gamma": settings["gamma"], "batch_size": settings["batch_size"]},
    )
    if algo == "cql":
        return d3rlpy.algos.DiscreteCQLConfig(
            learning_rate=rate,
            encoder_factory=encoder,
            n_critics=1,
            target_update_interval=settings["target_update_interval"],
            alpha=settings["alpha"],
            **shared,
        )
    shared |= {"actor_learning_rate": rate, "critic_learning_rate": rate, "tau": settings["tau"]}
    shared |= {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder, "n_critics": 2}
    if algo == "td3_bc":
        return d3rlpy.algos.TD3PlusBCConfig(alpha=settings["alpha"], update_actor_interval=2, **shared)
    return d3rlpy.algos.IQLConfig(
        value_encoder_factory=encoder,
        expectile=settings["expectile"],
        weight_temp=settings["inverse_temperature"],
        max_weight=settings["max_weight"],
        **shared,
    )


def main() -> None:
    """Train, write the policy, and print the CPU time."""
    parser = argparse.ArgumentParser()
    for name in ("algo", "columns", "settings", "policy"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    d3rlpy.seed(flags.seed)
    columns = np.load(flags.columns)
    data = d3rlpy.dataset.MDPDataset(
        observations=columns["observations"],
        actions=columns["actions"],
        rewards=columns["rewards"],
        terminals=columns["terminals"],
        timeouts=columns["timeouts"],
        action_space=d3rlpy.ActionSpace.DISCRETE if flags.algo == "cql" else d3rlpy.ActionSpace.CONTINUOUS,
        action_size=int(columns["action_size"]),
    )
    learner = config_of(flags.algo, json.loads(flags.settings)).create(device="cpu")
    learner.build_with_dataset(data)
    started = time.process_time()
    learner.fit(
        data,
        n_steps=flags.updates,
        n_steps_per_epoch=flags.updates,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    seconds = (time.process_time() - started) / flags.updates
    learner.save_policy(flags.policy)
    print(json.dumps({"seconds_per_update": seconds}))


if __name__ == "__main__":
    main()
