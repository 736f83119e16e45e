"""The numeric heart: NumPy only, no model and no deep-learning library."""
