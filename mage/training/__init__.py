"""Training: build what a recipe names, and run the loop."""
