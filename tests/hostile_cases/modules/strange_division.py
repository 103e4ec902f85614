"""Fails when it is imported."""

_ = 1 / 0
