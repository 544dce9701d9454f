"""A real Kubernetes on this machine, built from pinned Go modules and started in a network of its own."""
