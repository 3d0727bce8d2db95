"""Supervised learning from demonstrations before reinforcement learning."""
