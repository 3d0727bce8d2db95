"""Credit assignment: returns, advantages and training samples."""
