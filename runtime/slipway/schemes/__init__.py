"""How weights are stored and multiplied: a `Scheme` owns the numbers of one matrix."""
