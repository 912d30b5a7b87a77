"""A trace, played against a server that speaks the OpenAI API."""
