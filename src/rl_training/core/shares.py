"""Divides things as evenly as possible: environments among groups, groups among processes, rows among shards."""

from itertools import pairwise


def shares(count: int, parts: int) -> list[range]:
    """Return `count` numbers in `parts` runs, as even as possible, the larger ones first; some may be empty.

    >>> shares(5, 2)
    [range(0, 3), range(3, 5)]
    """
    size, larger = divmod(count, parts)
    ends = [part * size + min(part, larger) for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
