"""Kills, corruptions, fuzzed input and full disks: `make torture`, and its short form in tests."""
