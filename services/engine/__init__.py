"""The engine: the process that owns a device, its model, its KV pool and its KV transfer."""
