"""Hand-written forward and backward passes, and nothing else; tests hold each equal to its module and to autograd."""
