"""Recipes: one validated tree of options from TOML files and `--a.b=c` overrides."""
