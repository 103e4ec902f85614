"""Spaces and what is derived from them: their layout in memory, as plain data, action masks, images."""
