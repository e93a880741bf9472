"""Files written and read: atomic writes and JSON records."""
