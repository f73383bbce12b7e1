"""Ask, tell and optimise, with everything stored."""
