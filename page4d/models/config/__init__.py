"""Network configurations."""
