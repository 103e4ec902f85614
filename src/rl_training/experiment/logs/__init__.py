"""What a run writes while it trains: metric files, TensorBoard events, metadata, the learning curve."""
