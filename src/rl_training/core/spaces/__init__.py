"""Spaces: their layout in memory, spaces as plain data, action masks, images."""
