"""What can be tried: parameters, constraints, and the unit cube they are encoded in."""
