"""Model families: one readable file each, built from the parts in `layers`."""
