"""Modules that commands for vLLM name. They are in the images alone, where no vLLM is."""
