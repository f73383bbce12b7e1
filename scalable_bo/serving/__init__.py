"""A study that workers on any machine ask and tell, and its live page."""
