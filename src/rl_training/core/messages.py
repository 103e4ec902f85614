"""Messages between the processes of a run: through pipes that only they hold, and the object store of its Ray cluster.

This is the only module that may unpickle: a message comes from the same program and user. Nothing here reads or writes
files. Checkpoints and anything else that somebody may have sent are safetensors and JSON.
"""

import pickle
from typing import Any

import cloudpickle


def encode(content: Any) -> bytes:
    """Return a message of data and of objects that the other process can import."""
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)


def encode_code(content: Any) -> bytes:
    """Return a message that may also hold functions and classes without a name, such as a lambda of the user."""
    encoded: bytes = cloudpickle.dumps(content)
    return encoded


def decode(message: bytes) -> Any:
    """Return what `encode` or `encode_code` was given."""
    return pickle.loads(message)
