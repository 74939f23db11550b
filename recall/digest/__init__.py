"""The digest tree: what it is made of, how it is split, what has to be done again. Pure; no model, no store, no Ray."""
