"""The limit that matrix products set: the time of nothing but the products of a row's updates, in torch, on one thread.

Forward, backward and target networks at the row's sizes, into arrays that exist before; no activations, no losses, no
optimizer, no environment. Convolutions are torch's own, forward and backward. Whatever a row needs per gradient step
is a list of calls; how many gradient steps a row makes per environment step follows from its settings.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from rows import Speed
from torch import Tensor

Call = Callable[[], object]
SIZES = {"CartPole-v1": (4, 2), "HalfCheetah-v5": (17, 6), "BreakoutNoFrameskip-v4": (0, 4)}
"""Numbers of an observation and of an action (or how many actions there are)."""
NATURE = ((4, 84, 32, 8, 4), (32, 20, 64, 4, 2), (64, 9, 64, 3, 1))
"""Channels, side, filters, kernel and stride of the three convolutions; 64 x 7 x 7 numbers come out."""


def product(rows: int, inner: int, columns: int, *, left: bool = False, right: bool = False) -> Call:
    """Return a product of random matrices into a matrix of its own; `left` and `right` say which is transposed."""
    a = torch.randn(inner, rows).t() if left else torch.randn(rows, inner)
    b = torch.randn(columns, inner).t() if right else torch.randn(inner, columns)
    out = torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=out)


def forward(batch: int, sizes: tuple[int, ...]) -> list[Call]:
    """Return the products of a pass through layers of these sizes."""
    return [product(batch, a, b, right=True) for a, b in pairwise(sizes)]


def backward(batch: int, sizes: tuple[int, ...], *, weights: bool = True, inputs: int = 0) -> list[Call]:
    """Return the products of the gradients of the weights, and of what lies between layers.

    `inputs` is for how many numbers of the input a gradient is wanted, too.
    """
    calls = []
    for layer, (a, b) in enumerate(pairwise(sizes)):
        if weights:
            calls.append(product(b, batch, a, left=True))
        wanted = inputs if layer == 0 else a
        if wanted:
            calls.append(product(batch, b, wanted))
    return calls


def learned(batch: int, sizes: tuple[int, ...]) -> list[Call]:
    """Return a pass forward and one backward."""
    return forward(batch, sizes) + backward(batch, sizes)


def convolutions(batch: int, *, learned: bool) -> list[Call]:
    """Return the Nature CNN's convolutions of one pass, backward as well if it is learned.

    A pixel's channels lie side by side, which is the fastest order.
    """
    calls: list[Call] = []
    for index, (channels, side, filters, kernel, stride) in enumerate(NATURE):
        x = _side_by_side(torch.randn(batch, channels, side, side))
        w = _side_by_side(torch.randn(filters, channels, kernel, kernel))
        calls.append(lambda x=x, w=w, stride=stride: torch.conv2d(x, w, stride=stride))  # type: ignore[misc]
        if learned:
            after = (side - kernel) // stride + 1
            gradient = _side_by_side(torch.randn(batch, filters, after, after))
            calls.append(_convolution_backward(gradient, x, w, stride, wants_input=index > 0))
    return calls


def _side_by_side(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _convolution_backward(gradient: Tensor, x: Tensor, w: Tensor, stride: int, *, wants_input: bool) -> Call:
    wanted = [wants_input, True, False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, x, w, None, [stride, stride], [0, 0], [1, 1], False, [0, 0], 1, wanted
    )


def recurrent(sequences: int, length: int, inputs: int, size: int) -> list[Call]:
    """Return an LSTM over sequences, forward and backward: one product for all inputs, one per step for the memory."""
    batch, gates = sequences * length, 4 * size
    steps = [product(sequences, size, gates, right=True) for _ in range(length)]
    back = [product(sequences, gates, size) for _ in range(length - 1)]
    return [
        product(batch, inputs, gates, right=True),
        *steps,
        *back,
        product(gates, batch, inputs, left=True),
        product(gates, batch, size, left=True),
    ]


def ppo(row: Speed) -> list[Call]:
    """Actor and critic with a body each; from pixels one body, or a memory each in front of them."""
    settings, (obs, actions) = row.settings, SIZES[row.env_id]
    batch = settings.get("batch_size", row.num_envs * settings["num_steps"])
    hidden = tuple(settings["hidden_sizes"])
    if row.preprocessing == "atari":
        features = settings["features_dim"]
        body = convolutions(batch, learned=True) + forward(batch, (3_136, features))
        body += backward(batch, (3_136, features), inputs=3_136)
        for size in (actions, 1):
            body += forward(batch, (features, size)) + backward(batch, (features, size), inputs=features)
        return body
    if "core_size" in settings:
        core, length = settings["core_size"], settings["sequence_length"]
        calls = []
        for last in (actions, 1):
            sizes = (core, *hidden, last)
            calls += recurrent(batch // length, length, obs, core) + forward(batch, sizes)
            calls += backward(batch, sizes, inputs=core)
        return calls
    return learned(batch, (obs, *hidden, actions)) + learned(batch, (obs, *hidden, 1))


def dqn(row: Speed) -> list[Call]:
    """The target network forward, the other one forward and backward."""
    settings, (obs, actions) = row.settings, SIZES[row.env_id]
    batch, hidden = settings["batch_size"], tuple(settings["hidden_sizes"])
    if row.preprocessing == "atari":
        sizes = (3_136, settings["features_dim"], actions)
        target = convolutions(batch, learned=False) + forward(batch, sizes)
        return (
            target
            + convolutions(batch, learned=True)
            + forward(batch, sizes)
            + backward(batch, sizes, inputs=3_136)
        )
    return forward(batch, (obs, *hidden, actions)) + learned(batch, (obs, *hidden, actions))


def _critics(row: Speed, outputs: int) -> tuple[list[Call], list[Call], int]:
    """Return the products of learning two critics; those of one pass of the actor, learned; and the batch."""
    settings, (obs, actions) = row.settings, SIZES[row.env_id]
    batch, hidden = settings["batch_size"], tuple(settings["hidden_sizes"])
    actor, critic = (obs, *hidden, outputs), (obs + actions, *hidden, 1)
    target = forward(batch, actor) + forward(batch, critic) + forward(batch, critic)
    return target + learned(batch, critic) + learned(batch, critic), learned(batch, actor), batch


def sac(row: Speed) -> list[Call]:
    """Critics, and an actor whose gradient comes through both of them."""
    obs, actions = SIZES[row.env_id]
    critics, actor, batch = _critics(row, 2 * actions)
    sizes = (obs + actions, *row.settings["hidden_sizes"], 1)
    through = forward(batch, sizes) + backward(batch, sizes, weights=False, inputs=actions)
    again = forward(batch, sizes) + backward(batch, sizes, weights=False, inputs=actions)
    return critics + actor + through + again


def td3(row: Speed) -> list[Call]:
    """Two updates of the critics and one of the actor, whose gradient comes through one of them."""
    obs, actions = SIZES[row.env_id]
    critics, actor, batch = _critics(row, actions)
    sizes = (obs + actions, *row.settings["hidden_sizes"], 1)
    through = forward(batch, sizes) + backward(batch, sizes, weights=False, inputs=actions)
    return critics + _critics(row, actions)[0] + actor + through


PLANS: dict[str, tuple[Callable[[Speed], list[Call]], int]] = {
    "ppo": (ppo, 1), "a2c": (ppo, 1), "recurrent_ppo": (ppo, 1), "dqn": (dqn, 1), "sac": (sac, 1), "td3": (td3, 2),
}  # fmt: skip
"""Algorithm -> what is called, and for how many gradient steps that is."""


def gradient_steps_per_step(row: Speed) -> float:
    """Return how many minibatches are learned from per environment step."""
    settings = row.settings
    if "train_freq" in settings:
        return settings["gradient_steps"] / settings["train_freq"]
    rollout = row.num_envs * settings["num_steps"]
    return settings.get("update_epochs", 1) * max(1, rollout // settings.get("batch_size", rollout)) / rollout


def limit(row: Speed, seconds: float) -> dict[str, Any]:
    """Return the seconds per environment step that the products alone take."""
    torch.set_num_threads(1)
    plan, gradient_steps = PLANS[row.algo]
    calls = plan(row)
    _repeat(calls, seconds / 10)  # warm up
    per_gradient_step = _repeat(calls, seconds) / gradient_steps
    return {
        "seconds_per_step": per_gradient_step * gradient_steps_per_step(row),
        "seconds_per_gradient_step": per_gradient_step,
    }


def _repeat(calls: list[Call], seconds: float) -> float:
    """Return the mean time of all calls over at least so many seconds."""
    times, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not times:
        for call in calls:
            call()
        times += 1
    return elapsed / times
