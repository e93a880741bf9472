"""Palettes and colour maps, drawing primitives of pictures, and line charts."""
