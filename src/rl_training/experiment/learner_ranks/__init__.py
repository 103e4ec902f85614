"""Learner ranks: processes that compute shards of an update. Not here: what a shard is, see `algorithms/shards.py`.

Rank 0 is the process of the run. Every other rank has a copy of the learner and takes the same steps on the same
batches; only the gradients of shards are exchanged. Rank 0 can compute any shard itself, so a rank that is late, stops
or dies costs time and never changes a result.
"""
