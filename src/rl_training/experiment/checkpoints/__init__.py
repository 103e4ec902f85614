"""Checkpoints on disk: format, folders, replay segments, trust, locking, and starting a new run from one."""
