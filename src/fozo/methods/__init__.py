"""The methods: one file or package each. Importing this package registers them all."""

from fozo.methods import align, deyo, eata, equalise, foa, fozo, lame, noadapt, sar, t3a, tent, zoa

__all__ = ["align", "deyo", "eata", "equalise", "foa", "fozo", "lame", "noadapt", "sar", "t3a", "tent", "zoa"]
