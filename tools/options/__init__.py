"""Code that several tools share: the converters to BF16, and folders of models."""
