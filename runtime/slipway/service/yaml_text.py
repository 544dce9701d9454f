"""The text of a document, before anything is known of its fields."""

from __future__ import annotations

from typing import Any

from slipway.service.fields import InvalidService


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
