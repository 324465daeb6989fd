"""From samples to text and pictures."""
