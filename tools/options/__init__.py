"""What several tools do between their options and a call: both converters to BF16, and folders of models."""
