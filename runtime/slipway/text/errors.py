"""What goes wrong with a text that a request brings."""


class GrammarError(ValueError):
    """No output can be held to what a request asks for; the message says why, without a full stop."""
