"""Processes that train together: launch, messages, watching, stopping, dealing of work."""
