"""Image sets, corruptions and streams."""
