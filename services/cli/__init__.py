"""The `sluice` command: starts one process, or all of them on one machine."""
