"""What OmniQ decides. Everything here is a function of its arguments: no clock, no chance, no IO."""
