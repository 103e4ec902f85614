"""Who acts: policies for playing and explorers for collecting."""
