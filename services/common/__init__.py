"""What every control process shares: domain types, errors, wire formats, text, metrics, logs. Never imports torch."""
