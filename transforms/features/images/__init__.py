"""Images as samples: what the input of a model gets of a file, and whether it was trained on such numbers."""
