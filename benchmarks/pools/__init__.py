"""What is measured of process pools."""
