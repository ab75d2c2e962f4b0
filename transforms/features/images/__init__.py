"""Images as samples: how files become inputs of a model, and whether its training used such numbers."""
