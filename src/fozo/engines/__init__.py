"""Engines run the frozen model: see :mod:`fozo.engines.base` for the contract."""
