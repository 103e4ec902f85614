"""Files that a run writes during training: metrics, TensorBoard events, metadata, the learning curve."""
