"""Instruments that touch the world, and the records that they leave."""
