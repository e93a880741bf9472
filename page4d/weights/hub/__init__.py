"""Files of the Hugging Face hub: references by name, bounded requests, verified transfers and pins."""
