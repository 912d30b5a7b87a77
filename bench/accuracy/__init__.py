"""Accuracy through a running gateway, by lm_eval: see docs/accuracy.md."""
