"""Many runs: presets and manifests as jobs, the launcher, and the statistics and report of their scores."""
