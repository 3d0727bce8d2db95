"""The agent: prompts, the chat format, and how replies are parsed."""
