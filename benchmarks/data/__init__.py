"""What is measured of data pools and loaders."""
