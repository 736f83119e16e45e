"""ZOA (Deng et al., 2025), and what it knows of domains."""

from fozo.methods.zoa.method import ZOA, ZOAConfig

__all__ = ["ZOA", "ZOAConfig"]
