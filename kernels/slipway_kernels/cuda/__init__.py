"""What the Triton kernels share: how they are launched, compiled ahead of time, interpreted and measured."""
