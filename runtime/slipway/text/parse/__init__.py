"""From what a model writes to reasoning, content and tool calls, as it arrives."""
