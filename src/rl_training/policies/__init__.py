"""Policies, which choose actions, and explorers, which choose actions while collecting."""
