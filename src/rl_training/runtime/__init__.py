"""The training loop: trainer, sampler, evaluator, callbacks and metrics, independent of the algorithm."""
