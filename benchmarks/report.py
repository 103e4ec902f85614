"""The tables and the picture made of what was measured."""

from pathlib import Path
from typing import Any

from rows import CONTRIB, GROWTH, LIMIT, OURS, RACE, SB3, SBX, SPEED, STARTUP, Growth, Race, Speed, Startup
from store import Store
from summary import Rounds, exponents, limit_share, of, ratio, verdict

from rl_training.experiment.files import write_bytes, write_text

MEMORY_TARGETS = {SB3: 1.0, CONTRIB: 1.0, SBX: 0.6}
"""Peer -> part of its peak memory that we mean to stay within."""
TOLERANCE = 0.15
"""By how much the power of growth may exceed what is allowed: the noise of a measurement."""


def speed_lines(row: Speed, rounds: Rounds) -> list[str]:
    """Return a line per peer, and one per variant of ours."""
    ours = of(rounds, OURS, "steps_per_second").text()
    lines = []
    for peer in row.peers:
        times, memory = ratio(rounds, "steps_per_second", OURS, peer), ratio(rounds, "peak_mib", OURS, peer)
        peaks = f"{of(rounds, OURS, 'peak_mib').median:,.0f} / {of(rounds, peer, 'peak_mib').median:,.0f}"
        lines.append(
            f"| {row.title} | {peer} | {ours} | {of(rounds, peer, 'steps_per_second').text()} | "
            f"**{times.text('.2f')}** | {verdict(times.median, row.targets.get(peer))} | {peaks} | "
            f"{verdict(memory.median, MEMORY_TARGETS.get(peer), at_most=True)} |"
        )
        ours = ""
    for variant in row.variants:
        times = ratio(rounds, "steps_per_second", variant, row.peers[0])
        lines.append(
            f"| {row.title}, {variant} | {row.peers[0]} | {of(rounds, variant, 'steps_per_second').text()} | | "
            f"{times.text('.2f')} | | {of(rounds, variant, 'peak_mib').median:,.0f} | |"
        )
    return lines


def limit_line(row: Speed, rounds: Rounds) -> str:
    """Return how near a row is to its products, and which way its updates went."""
    whole = limit_share(rounds, OURS, LIMIT)
    updating = limit_share(rounds, OURS, LIMIT, of_updating=True)
    paths = sorted({str(entry[OURS]["update_path"] or "not told") for entry in rounds})
    return (
        f"| {row.title} | {whole.text('.0%')} | {updating.text('.0%')} | {verdict(whole.median, row.limit_target)} | "
        f"{', '.join(paths)} |"
    )


def race_lines(row: Race, rounds: Rounds) -> list[str]:
    """Return a line per seed and one of the median."""
    times = ratio(rounds, "seconds", row.peer, OURS)
    lines = [
        f"| {number + 1} | {_finish(entry[OURS])} | {_finish(entry[row.peer])} | "
        f"{entry[row.peer]['seconds'] / entry[OURS]['seconds']:.2f} |"
        for number, entry in enumerate(rounds)
    ]
    total = [f"{of(rounds, side, 'seconds').median:.1f} s" for side in row.sides]
    return [
        *lines,
        f"| median | {total[0]} | {total[1]} | **{times.median:.2f}** {verdict(times.median, row.target)} |",
    ]


def _finish(entry: Any) -> str:
    late = "" if entry["reached"] else ", not reached"
    return f"{entry['seconds']:.1f} s, {entry['timesteps']:,} steps{late}"


def growth_line(row: Growth, rounds: Rounds) -> str:
    """Return microseconds per step by the setting, and the steepest power between neighbours."""
    points = [side for side in row.sides if all(side in entry for entry in rounds)]
    costs = {float(point): 1e6 / of(rounds, point, "steps_per_second").median for point in points}
    steepest = max(exponents(costs))
    told = ", ".join(f"{value:,.0f}: {cost:,.0f}" for value, cost in costs.items())
    fine = "" if steepest <= row.exponent + TOLERANCE else " **grows faster**"
    return f"| {row.title} | {told} | {steepest:.2f} | {row.exponent:g}{fine} |"


def startup_lines(row: Startup, rounds: Rounds) -> list[str]:
    """Return a line per command."""
    first = row.sides[0]
    return [
        f"| `{side}` | {of(rounds, side, 'seconds').text('.2f')} | {ratio(rounds, 'seconds', side, first).median:.2f} |"
        for side in row.sides
    ]


def surroundings_lines(store: Store) -> list[str]:
    """Return machine and versions; a paragraph per group of rows, if they were not all made alike."""
    groups, lines = store.made_with(), list[str]()
    for around, names in groups:
        used = ", ".join(f"{name} {number}" for name, number in around["versions"].items())
        whose = "" if len(groups) == 1 else f"{', '.join(names)} (source {around['source']}): "
        lines += [f"{whose}{around['processor']}, {used}.", ""]
    return lines


def markdown(store: Store) -> str:
    """Return the whole report; rows that were not measured are left out."""
    speeds = [(row, store.rounds(row.name)) for row in SPEED if store.rounds(row.name)]
    growths = [(row, store.rounds(row.name)) for row in GROWTH if store.rounds(row.name)]
    race, startup = store.rounds(RACE.name), store.rounds(STARTUP.name)
    lines = [
        "# Speed and memory beside others",
        "",
        "Made by `make bench`: every figure is of a process of its own on one core with one thread, in rounds in which "
        "all sides take turns; medians with the range of the rounds, ratios divided within a round. The same settings "
        "on all sides (RL Zoo's where it has them, `benchmarks/rows.py`), no evaluation and no log rows; what comes "
        "before the warm-up is left out, and with it the compilation of SBX (JAX on the CPU). rlox plays a CartPole of "
        "its own, in Rust; SBX's DQN clips no gradients. Memory is the most that a process ever had, all libraries "
        "included; ours has written checkpoints, metric files and a learning curve and played an evaluation by then.",
        "",
    ]
    if speeds:
        lines += [
            "| | peer | ours, steps/s | peer, steps/s | ours / peer | target | MiB, ours / peer | target |",
            "|---|---|---|---|---|---|---|---|",
            *[line for row, rounds in speeds for line in speed_lines(row, rounds)],
            "",
            "## How near to the products",
            "",
            "The time of nothing but the matrix products of a row's updates (forward, backward, target networks; "
            "torch, into arrays that exist), as a share of all of our time, and of the part that draws batches and "
            "learns.",
            "",
            "| | share of all | share of updating | target | update path |",
            "|---|---|---|---|---|",
            *[limit_line(row, rounds) for row, rounds in speeds],
            "",
        ]
    if race:
        lines += [
            f"## {RACE.title}",
            "",
            f"Seconds of training, evaluations and start-up left out: {RACE.num_episodes} episodes every "
            f"{RACE.evaluate_every:,} steps, the same for both. Ours with the preset `{RACE.preset}`, "
            f"{RACE.peer} with RL Zoo's settings, {RACE.total_timesteps:,} steps at most.",
            "",
            f"| seed | ours | {RACE.peer} | times as fast |",
            "|---|---|---|---|",
            *race_lines(RACE, race),
            "",
        ]
    if growths:
        lines += [
            "## Growth",
            "",
            "Microseconds per environment step, updates included, by the setting's value. The power is the steepest "
            f"between neighbours; up to {TOLERANCE:g} above the allowed one passes for noise.",
            "",
            "| | setting: microseconds | power | allowed |",
            "|---|---|---|---|",
            *[growth_line(row, rounds) for row, rounds in growths],
            "",
        ]
    if startup:
        lines += [
            "## Start-up",
            "",
            "| | seconds | part of the first |",
            "|---|---|---|",
            *startup_lines(STARTUP, startup),
            "",
        ]
    return "\n".join([*lines, *surroundings_lines(store)])


def chart(store: Store, path: Path) -> None:
    """Draw how many times as fast as each peer we are, a bar per peer and row."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [
        (row.title, peer, ratio(store.rounds(row.name), "steps_per_second", OURS, peer))
        for row in SPEED
        if store.rounds(row.name)
        for peer in row.peers
    ]
    if not bars:
        return
    colours = dict(
        zip((SB3, CONTRIB, SBX, "tianshou", "rlox"), pyplot.colormaps["tab10"].colors, strict=False)
    )
    drawing, axes = pyplot.subplots(figsize=(7.0, 0.26 * len(bars) + 0.9), dpi=90, layout="constrained")
    for place, (_, peer, times) in enumerate(bars):
        axes.barh(place, times.median, color=colours[peer], height=0.8)
        axes.plot([times.least, times.greatest], [place, place], color="black", linewidth=1)
    axes.set_yticks(range(len(bars)), [f"{title} / {peer}" for title, peer, _ in bars], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("steps per second, ours / peer (one core; lines: range of the rounds)", fontsize=8)
    content = io.BytesIO()
    drawing.savefig(content, format="png")
    pyplot.close(drawing)
    write_bytes(path, content.getvalue())


def write(store: Store, folder: Path) -> None:
    """Write `bench.md` and `bench.png`."""
    write_text(folder / "bench.md", markdown(store))
    chart(store, folder / "bench.png")
