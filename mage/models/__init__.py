"""Starting models. Every source ends as the same kind of folder, which transformers can load."""
