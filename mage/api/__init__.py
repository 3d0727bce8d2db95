"""The Python interface. `import mage` gives its names; see docs/python_api.md."""
