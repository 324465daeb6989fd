"""A Django application of its own."""
