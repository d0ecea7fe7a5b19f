"""Trace-driven simulation of prefill and decode pools with tiers of cache."""
