"""A failure is reported within seconds: Hypothesis may spend five minutes on a smaller one, which looks like a hang."""

from collections.abc import Iterator

import pytest
from hypothesis.internal.conjecture import engine

SECONDS_TO_SHRINK = 8


@pytest.fixture(autouse=True, scope="session")
def short_shrinking() -> Iterator[None]:
    """There is no setting for it but to not shrink at all, and small examples are worth a few seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "MAX_SHRINKING_SECONDS", SECONDS_TO_SHRINK)
        yield
