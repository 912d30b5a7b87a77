"""Parts of the gateway benchmark: a worker without an engine, and a client that costs little."""
