"""Numerics on NumPy arrays, with SciPy for transforms and special functions: no model, no deep-learning library."""
