"""What one environment variable is: its type, its meaning, what a cluster lets a user set, what works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None
Type = Literal["bool", "int", "float", "str", "path", "url", "enum", "list[str]", "list[int]"]
Category = Literal[
    "build-time",
    "runtime",
    "distributed-internal",
    "credential",
    "debug/test",
    "other-hardware",
    "slipway",
]
Action = Literal[
    "allow",
    "allow-if-device",
    "operator-default",
    "operator-only",
    "secret-only",
    "reject",
    "reject-unless-opt-in",
]
Status = Literal["implemented", "not built yet", "accepted with a warning", "refused"]

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class ClusterRule:
    """What an operator does with the variable where a user puts it into an InferenceService."""

    action: Action
    reason: str
    device: str | None = None
    """The one device on which the variable means something."""


@dataclass(frozen=True, slots=True)
class Today:
    """What this version does with the variable where it is set, and why."""

    status: Status
    reason: str = ""


class InvalidEnvironment(ValueError):
    """A variable holds something that the server cannot start with; `variable` is its name."""

    def __init__(self, variable: str, sentence: str) -> None:
        super().__init__(sentence)
        self.variable = variable


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable, declared once for the server, the operator and the manual."""

    name: str
    type: Type
    default: Value
    summary: str
    cluster: ClusterRule
    today: Today
    category: Category = "runtime"
    options: tuple[str, ...] = ()
    unit: str = ""
    effective_default: str = ""
    """In words, where the default is derived."""
    minimum: float | None = None
    maximum: float | None = None
    """Both bound each number of a list."""
    of_launcher: bool = False
    """What started the process says it: `Launched` reads it, where an argument says that there is such."""
    prefer_argument: str | None = None
    """The argument that says the same: it wins, and in a cluster both may not differ."""
    collides_with_service: str | None = None
    """The Kubernetes Service whose injected links take this very name."""
    harmless: tuple[Value, ...] = ()
    """Values beside the default that ask for nothing: what the server does anyway."""
    caveat: str = ""
    """What a working variable leaves undone; said in a warning where it is set."""

    @property
    def status(self) -> Status:
        return self.today.status

    @property
    def reason(self) -> str:
        return self.today.reason

    @property
    def action(self) -> Action:
        return self.cluster.action

    @property
    def action_reason(self) -> str:
        return self.cluster.reason

    @property
    def device(self) -> str | None:
        return self.cluster.device

    @property
    def secret(self) -> bool:
        return self.category == "credential"

    @property
    def own(self) -> bool:
        """Whether it is ours alone, in no other server's documents."""
        return self.category == "slipway"

    @property
    def field(self) -> str:
        """Its attribute of `Environment`."""
        return self.name.removeprefix("VLLM_").lower()

    def shown(self, text: str) -> str:
        """`NAME=value` for messages, with credentials hidden."""
        return f"{self.name}={'***' if self.secret else text}"

    def is_link(self, text: str) -> bool:
        """Whether Kubernetes wrote it there, for a Service of an unlucky name."""
        return self.collides_with_service is not None and "://" in text

    def parse(self, text: str | None) -> Value:
        """The typed value; unset, empty and a Service's link mean the default. Raises InvalidEnvironment."""
        if text is None or not text.strip() or self.is_link(text):
            return self.default
        try:
            value = _convert(self, text.strip())
        except ValueError:
            raise InvalidEnvironment(self.name, self._wanted(text)) from None
        if not all(map(self._within, value if isinstance(value, tuple) else (value,))):
            raise InvalidEnvironment(self.name, self._wanted(text))
        return value

    def _within(self, number: Value) -> bool:
        """Whether the bounds let it pass; they are for numbers alone."""
        if not isinstance(number, int | float):
            return True
        low, high = self.minimum, self.maximum
        return (low is None or number >= low) and (high is None or number <= high)

    def asks_for_nothing(self, text: str) -> bool:
        """Whether the value equals what the server does without it."""
        try:
            value = self.parse(text)
        except InvalidEnvironment:
            return False
        return value == self.default or value in self.harmless

    def _wanted(self, text: str) -> str:
        kind = {
            "bool": "0 or 1",
            "int": "a whole number",
            "float": "a number",
            "list[int]": "whole numbers separated by commas",
            "enum": "one of " + ", ".join(self.options),
        }.get(self.type, "text")
        bound = "" if self.minimum is None else f" of at least {self.minimum:g}"
        bound += "" if self.maximum is None else f" and at most {self.maximum:g}"
        return f"{self.shown(text)} is not {kind}{bound}. {self.summary} Correct it or unset it."


def service_link(variable: Variable, text: str) -> str:
    """The sentence for a port variable that Kubernetes overwrote with the URL of a Service."""
    return (
        f"{variable.name}={text} is the link that Kubernetes injects for a Service called "
        f"{variable.collides_with_service}, not a port: it is ignored. Set enableServiceLinks: "
        "false on the pod, or rename the Service."
    )


def _convert(variable: Variable, text: str) -> Value:
    match variable.type:
        case "bool":
            if text.lower() in TRUE_WORDS:
                return True
            if text.lower() in FALSE_WORDS:
                return False
            raise ValueError(text)
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "list[str]":
            return tuple(part.strip() for part in text.split(",") if part.strip())
        case "list[int]":
            return tuple(int(part) for part in text.split(","))
        case "enum":
            spelling = {option.lower(): option for option in variable.options}
            if text.lower() not in spelling:
                raise ValueError(text)
            return spelling[text.lower()]
        case _:
            return text


def allow(reason: str) -> ClusterRule:
    return ClusterRule("allow", reason)


def allow_on(device: str, reason: str) -> ClusterRule:
    return ClusterRule("allow-if-device", reason, device)


def operator_default(reason: str) -> ClusterRule:
    return ClusterRule("operator-default", reason)


def operator_only(reason: str) -> ClusterRule:
    return ClusterRule("operator-only", reason)


def opt_in(reason: str) -> ClusterRule:
    return ClusterRule("reject-unless-opt-in", reason)


def reject(reason: str) -> ClusterRule:
    return ClusterRule("reject", reason)


def secret_only() -> ClusterRule:
    return ClusterRule("secret-only", "it comes from a Secret by reference; a literal is refused")


def implemented(reason: str = "") -> Today:
    return Today("implemented", reason)


def not_built(reason: str) -> Today:
    return Today("not built yet", reason)


def no_effect(reason: str) -> Today:
    return Today("accepted with a warning", reason)


def refused(reason: str) -> Today:
    return Today("refused", reason)
