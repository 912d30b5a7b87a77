"""The native API: LightLLM's wire."""
