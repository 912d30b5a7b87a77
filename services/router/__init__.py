"""The Router: decides which requests a worker lets in, so that a pool runs near full without running out."""
