"""Recipes, found by their names: each file lists its own as ``RECIPES``."""
