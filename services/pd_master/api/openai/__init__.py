"""The OpenAI API: completions, chat, models."""
