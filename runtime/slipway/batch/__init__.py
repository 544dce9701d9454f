"""A file of requests becomes a file of answers: `slipway run-batch`."""
