"""Engines run the frozen model: :class:`fozo.types.Engine` is the contract."""
