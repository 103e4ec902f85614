"""Games with several agents: opening them, playing them as one environment, and their rows. No learning."""
