"""Documents as text: read before anything is known of their fields, and printed for people."""

from __future__ import annotations

from typing import Any

from slipway.service.fields import InvalidService

BREAKS = frozenset("\x85\u2028\u2029")
"""Of lines, to YAML 1.1."""


def parse_yaml(text: str, kind: str) -> object:
    """Plain YAML of one object of this kind, each key once. Raises InvalidService where the text is none."""
    import yaml

    class Strict(yaml.SafeLoader):
        """Refuses a key given twice, of which plain YAML keeps the last without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if key.value in keys and key.tag != "tag:yaml.org,2002:merge":
                    line = key.start_mark.line + 1
                    raise InvalidService(f"line {line}", f"{key.value} stands there twice.")
                keys.add(str(key.value))
            result: dict[Any, Any] = super().construct_mapping(node, deep)
            return result

    try:
        return yaml.load(text, Strict)
    except yaml.composer.ComposerError as error:
        raise InvalidService(
            "document", f"one {kind} is expected, without others behind ---: {error.problem}."
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidService(f"line {line}", f"this is not YAML: {error.problem}.") from None
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise InvalidService("document", f"this is not YAML: {error}.") from None


def print_yaml(*documents: object) -> str:
    """YAML in the order of the keys."""
    import yaml

    class Whole(yaml.SafeDumper):
        """Writes what stands in two places twice: people read it, and anchors hide what is where."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def as_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        """In double quotes, where breaks that others take for a line's are escaped and not folded away."""
        broken = not BREAKS.isdisjoint(text)
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if broken else None)

    Whole.add_representer(str, as_text)
    text: str = yaml.dump_all(documents, Dumper=Whole, sort_keys=False, allow_unicode=True)
    return text
