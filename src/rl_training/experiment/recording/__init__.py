"""Records datasets: plays episodes with saved agents and writes them as a Minari dataset."""
