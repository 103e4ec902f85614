"""Recorded episodes in files: reading, checking and writing them. Learning from them is in `data` and `algorithms`."""
