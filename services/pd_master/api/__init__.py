"""The HTTP APIs: OpenAI, native, health and metrics."""
