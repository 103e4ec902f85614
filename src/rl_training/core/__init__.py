"""Types, protocols and pure functions that every other layer may use."""
