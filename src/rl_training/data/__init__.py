"""Buffers and experience sources: the data between acting and learning."""
