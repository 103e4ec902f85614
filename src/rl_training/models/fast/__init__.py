"""Hand-written forward and backward passes, and nothing else; tests compare each with its module and with autograd."""
