"""Strict YAML of plain scalars, lists and maps, safe for untrusted files: no code, no aliases, no duplicate keys."""

import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rl_training.core.errors import UserError

MAX_BYTES = 1 << 18
MAX_VALUES = 10_000
"""Values in one file, keys included: PyYAML needs a tenth of a millisecond for each."""
MAX_DIGITS = 400
"""Characters of a number: no float has a longer whole part."""
FORGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What PyYAML raises for forged tags, numbers and dates."""


def read_yaml(file: Path, name: object, example: str = "algo: ppo") -> dict[str, Any]:
    """Return the map in a YAML file of plain scalars, lists and maps; errors call it `name`."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe could block forever
            raise UserError(f"{name} is not a regular file")
        if status.st_size > MAX_BYTES:
            raise UserError(f"{name} is larger than {MAX_BYTES >> 10} KiB, the limit for a config")
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} cannot be read: {error}; save it as UTF-8") from error
    except FORGED as error:
        raise UserError(f"{name} is not valid YAML: {type(error).__name__}: {error}") from error
    if not isinstance(data, dict):
        held = "is empty" if data is None else f"holds {type(data).__name__}, not a map"
        raise UserError(f"{name} {held}; write lines such as '{example}'")
    return data


class StrictLoader(yaml.SafeLoader):
    """Safe YAML that rejects duplicate keys, too many values, and aliases, which can expand endlessly."""

    values_seen = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.values_seen += 1
        if self.values_seen > MAX_VALUES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs lack it
            raise yaml.composer.ComposerError(None, None, f"there are more than {MAX_VALUES:,} values", mark)
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs lack it
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > MAX_DIGITS:
            problem = f"a number has more than {MAX_DIGITS} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        is_int = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            hashable = isinstance(key, Hashable)
            if not hashable or key in seen:
                problem = f"key '{str(key)[:100]}' is written twice" if hashable else "a key must be text"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


for kind in ("int", "float"):
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{kind}", StrictLoader.construct_number)
