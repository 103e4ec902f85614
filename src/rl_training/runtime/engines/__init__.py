"""Engines: where the experience of a run is collected. An engine makes the sampler of a run."""
