"""Sluice services: one package per process role, plus what they share."""
