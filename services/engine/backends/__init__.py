"""What runs a step's operations: `cpu` with torch operations, others behind the same interface."""
