"""Where models come from: one file for each kind of source."""
