"""Training engine: the loop, checkpoints, optimizers, schedules and logs that all training runs share."""
