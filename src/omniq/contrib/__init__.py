"""Glue to frameworks. Nothing here is imported by `import omniq`."""
