"""Stand-ins for parts that need a model or a device; they speak the real protocols over real sockets."""
