"""Forward-only test-time adaptation for Vision Transformers."""
