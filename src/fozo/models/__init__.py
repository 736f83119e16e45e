"""The plain ViT that every supported model is converted into, and the converters."""
