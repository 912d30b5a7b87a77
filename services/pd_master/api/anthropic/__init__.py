"""The Anthropic API: messages and count_tokens, translated to a chat and back."""
