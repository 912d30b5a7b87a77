"""What prefill and decode workers share in their control process: engine, sessions to masters, text, health."""
