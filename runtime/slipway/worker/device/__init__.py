"""The worker on an accelerator: state in slots on the device, steps launched ahead, decoding as graphs."""
