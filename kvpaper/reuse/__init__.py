"""From a block trace to its reuse: hit-rate curves, their tail, and the capacity worth buying."""
