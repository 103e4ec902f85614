"""What turns raw frames into observations: images in general, Atari games in particular."""
