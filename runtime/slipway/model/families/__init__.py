"""One small file for each family of models; `registry.families` finds them all."""
