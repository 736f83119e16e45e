"""Eight-bit models."""
