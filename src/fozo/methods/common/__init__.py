"""What several methods share: state files, journals, wrapping, observing, LayerNorms."""
