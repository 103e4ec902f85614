"""What run folders tell: read, search, describe, compare and remove them, without torch and without trusting them."""
