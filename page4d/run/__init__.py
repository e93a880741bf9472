"""From a scene to an output folder: plan chunks, predict, bring them into one world, write."""
