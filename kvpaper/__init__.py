"""Formulas and instruments of the paper on KV cache tiering and prefill-decode disaggregation."""

__version__ = "0.1.0"
