"""Where starting models come from: every source ends as the same kind of folder, which transformers and MAGE load."""
