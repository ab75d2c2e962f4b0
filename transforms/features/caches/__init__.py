"""Key and value caches of a decoder kept in 8 or 4 bits between steps, and those of its encoder."""
