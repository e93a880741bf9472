"""Drawing primitives and charts."""
