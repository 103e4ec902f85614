"""Players of games and the games that they play with each other; no training, no ratings over many agents."""
