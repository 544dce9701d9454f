"""The Kubernetes operator: an InferenceService becomes pods that run the runtime, and says how they fare."""
