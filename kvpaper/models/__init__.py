"""Models: what a configuration says of the KV cache, and what the cache takes."""

from kvpaper.models.architecture import LayerGroup, Model, from_config
from kvpaper.models.library import load
from kvpaper.models.sizing import ELEMENT_BYTES, render, size

__all__ = ["ELEMENT_BYTES", "LayerGroup", "Model", "from_config", "load", "render", "size"]
