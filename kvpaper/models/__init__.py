"""Models: what a configuration says of the KV cache, and what the cache takes."""

from kvpaper.models.architecture import LayerGroup, Model, from_config
from kvpaper.models.library import load
from kvpaper.models.sizing import ELEMENT_BYTES, cache_bytes, render, size, state_bytes

__all__ = [
    "ELEMENT_BYTES", "LayerGroup", "Model", "cache_bytes", "from_config", "load", "render", "size",
    "state_bytes",
]  # fmt: skip
